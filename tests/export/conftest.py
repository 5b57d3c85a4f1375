"""The run of the bars as an ONNX file, which several tests share."""

import pytest
import torch

from onsight.export.export import model_facts
from onsight.export.to_onnx import write_onnx
from onsight.export.whole import as_program
from onsight.models.build import build_classifier
from onsight.models.file import load_model_file


@pytest.fixture(scope="session")
def onnx_file(trained, tmp_path_factory):
    """model.onnx of the trained run; nobody changes it."""
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    file = load_model_file(trained.path)
    program = as_program(build_classifier(file, torch.device("cpu")), file.format)
    write_onnx(program, model_facts(file), path)
    return path
