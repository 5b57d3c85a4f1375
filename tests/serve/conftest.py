"""A model file for the stub, and a server that many tests share."""

import sys
from types import SimpleNamespace

import pytest
from serve_stub import running

from onsight.serve import monitoring


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "light.onnx"
    path.write_text("1.0")
    return path


@pytest.fixture(scope="module")
def server(model):
    """A server with default limits, except for bodies; stopped before tests that fake time."""
    with running(model, body_bytes=100_000) as found:
        yield found


class StderrDuringTests:
    """stderr while a test runs; discarded between tests, when pytest does not capture it."""

    is_open = False

    def write(self, text):
        if self.is_open:
            sys.stderr.write(text)


STDERR = StderrDuringTests()


@pytest.fixture(scope="session", autouse=True)
def no_log_between_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitoring, "sys", SimpleNamespace(stderr=STDERR))
        yield


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    STDERR.is_open = True
    try:
        return (yield)
    finally:
        STDERR.is_open = False
