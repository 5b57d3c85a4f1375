"""The classifier for OpenVINO, Intel's runtime: an .xml file and its weights in a .bin."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.export import ExportedProgram

from onsight.data.pillow_pixels import Pixels
from onsight.export.format import Classify, Format
from onsight.export.to_onnx import write_onnx
from onsight.export.whole import exporting
from onsight.hardware.cores import usable_cores


def write_openvino(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
    """Write the graph, by way of ONNX, with its facts as runtime information. Raises ModelError."""
    import openvino

    with TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        write_onnx(program, facts, graph)
        with exporting("OpenVINO"):
            model = openvino.convert_model(graph)
            model.set_rt_info(json.dumps(facts), ["onsight"])
            openvino.save_model(model, path, compress_to_fp16=False)


def _run_openvino(path: Path) -> Classify:
    """In fp32, because the default is less precise on some processors."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": usable_cores()}
    compiled = openvino.Core().compile_model(path, "CPU", settings)

    def classify(pictures: Pixels) -> Any:
        return compiled(pictures)[0].copy()

    return classify


FORMAT = Format(
    ".xml",
    ("openvino", "onnx", "onnxscript"),
    "openvino 'onsight[export]'",
    write_openvino,
    _run_openvino,
    others=(".bin",),
)
