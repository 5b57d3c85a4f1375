"""A model file for the stub, and a server that many tests share."""

import pytest
from serve_stub import running


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "light.onnx"
    path.write_text("1.0")
    return path


@pytest.fixture(scope="module")
def server(model):
    """Default limits, but for the size of a body; gone before tests that turn the clock."""
    with running(model, body_bytes=100_000) as found:
        yield found
