"""The trained run as an ONNX file, which several tests share."""

import pytest
import torch

from onsight.export.export import model_facts
from onsight.export.to_onnx import write_onnx
from onsight.export.whole import as_program
from onsight.models.build import build_classifier
from onsight.models.file import load_model_file


@pytest.fixture(scope="session")
def onnx_file(trained, build_once):
    """model.onnx of the trained run; do not modify it."""

    def export(folder):
        file = load_model_file(trained.path)
        program = as_program(build_classifier(file, torch.device("cpu")), file.format)
        write_onnx(program, model_facts(file), folder / "model.onnx")

    return build_once(f"onnx-{trained.path.parent.name}", export) / "model.onnx"
