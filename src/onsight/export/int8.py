"""Quantize an exported ONNX file: convolutions and products in 8-bit integers."""

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

from onsight.data.pixels import Pixels
from onsight.export.to_onnx import seal_onnx
from onsight.export.whole import SHRINK_WEIGHTS, exporting
from onsight.inference.onnx_runner import INPUT, METADATA_KEY

# Operators between two convolutions are quantized too, so that nothing is converted there.
_QUANTIZED = ["Add", "AveragePool", "Clip", "Concat", "Conv", "Gemm", "GlobalAveragePool"]
_QUANTIZED += ["MatMul", "MaxPool", "Mul", "Relu"]
_PRODUCTS = {"Conv", "Gemm", "MatMul"}


class _ImageReader(CalibrationDataReader):  # type: ignore[misc]
    """Yields images uint8 (n, H, W, C) to the quantizer, one at a time."""

    def __init__(self, images: Pixels) -> None:
        self._batches: Iterator[Pixels] = iter(images[:, None])

    def get_next(self) -> dict[str, Pixels] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}


def write_int8(exported: Path, images: Pixels, path: Path) -> None:
    """Quantize an exported ONNX file with training images (n, H, W, C). Raises ModelError.

    Weights have a scale per channel and 7 bits, so that sums do not overflow on processors without
    VNNI: a proof on one processor holds on others. The layer that computes the logits of each
    network stays in fp32, since softmax would amplify its rounding, and so do blending and
    shrinking, which is exact.
    """
    entries = {entry.key: entry.value for entry in onnx.load(exported).metadata_props}
    facts: dict[str, Any] = json.loads(entries[METADATA_KEY])
    with TemporaryDirectory() as folder, exporting("onnxruntime's quantization"):
        prepared, quantized = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        quant_pre_process(exported, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            quantized,
            _ImageReader(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=_QUANTIZED,
            nodes_to_exclude=_nodes_in_fp32(prepared),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        model = onnx.load(quantized)
    seal_onnx(model, {**facts, "int8": {"calibration_images": len(images)}}, path)


def _nodes_in_fp32(path: Path) -> list[str]:
    """Return the names of the nodes that shrink images, and of those from the logits on."""
    graph = onnx.load(path, load_external_data=False).graph
    shrinking = [
        node.name
        for node in graph.node
        if any(name.endswith(SHRINK_WEIGHTS) for name in node.input)
    ]
    makers = {output: node for node in graph.node for output in node.output}
    from_logits, values = set(), [graph.output[0].name]
    while values:  # from the probabilities back to the last product of each network
        node = makers.get(values.pop())
        if node is not None and node.name not in from_logits:
            from_logits.add(node.name)
            if node.op_type not in _PRODUCTS:
                values += node.input
    return [*shrinking, *sorted(from_logits)]
