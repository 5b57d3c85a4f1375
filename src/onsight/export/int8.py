"""An ONNX file whose convolutions and products are computed in whole numbers of 8 bits."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_static,
)

from onsight.data.pillow_pixels import Pixels
from onsight.export.to_onnx import seal_onnx
from onsight.export.whole import exporting
from onsight.inference.onnx_runner import INPUT, METADATA_KEY

# What lies between two convolutions is computed in 8 bits too, so that nothing is converted there.
_QUANTIZED = ["Add", "AveragePool", "Clip", "Concat", "Conv", "Gemm", "GlobalAveragePool"]
_QUANTIZED += ["MatMul", "MaxPool", "Mul", "Relu"]


class _Images(CalibrationDataReader):  # type: ignore[misc]
    """Images uint8 (n, H, W, C), one at a time."""

    def __init__(self, images: Pixels) -> None:
        self.rest: Iterator[Pixels] = iter(images[:, None])

    def get_next(self) -> dict[str, Pixels] | None:
        one = next(self.rest, None)
        return None if one is None else {INPUT: one}


def write_int8(exported: Path, images: Pixels, path: Path) -> None:
    """Quantize an exported ONNX file with training images (n, H, W, C). Raises ModelError.

    Weights have a scale for each channel and 7 bits, so that sums do not overflow on processors
    without VNNI either: what is proven on one holds on the others. The layer that gives the
    logits stays in fp32, since softmax would show its rounding.
    """
    facts = _facts(exported)
    with TemporaryDirectory() as folder, exporting("onnxruntime's quantization"):
        prepared, quantized = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        quant_pre_process(exported, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            quantized,
            _Images(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=_QUANTIZED,
            nodes_to_exclude=_last_product(prepared),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        model = onnx.load(quantized)
    seal_onnx(model, {**facts, "int8": {"calibration_images": len(images)}}, path)


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(
        {one.key: one.value for one in onnx.load(path).metadata_props}[METADATA_KEY]
    )
    return facts


def _last_product(path: Path) -> list[str]:
    """The name of the node that gives the logits."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes if node.op_type in ("Gemm", "MatMul", "Conv")][-1:]
