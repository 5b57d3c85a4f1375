"""Settings for equal bits, and the operations for which they cannot be had."""

import json
import warnings
from threading import Event, Thread

import pytest
import torch
from torch import nn

from onsight.data.normalization import Normalization
from onsight.hardware.reproducible import deterministic, reporting_nondeterministic, reproducible
from onsight.models.classifier import Classifier
from onsight.report.console import Reporter
from onsight.training.run import train

CPU = torch.device("cpu")


def settings():
    fill = torch.utils.deterministic.fill_uninitialized_memory
    return torch.get_deterministic_debug_mode(), fill, torch.backends.cudnn.benchmark


def put():
    """An operation that has no deterministic kernel, even on the CPU."""
    torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))


class Net(nn.Module):
    """Uses such an operation, and remembers the settings of its calls."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(256, 2), set()

    def forward(self, inputs):
        self.seen.add(settings())
        put()
        return self.linear(inputs.flatten(1))


def test_settings_are_restored_after_a_run():
    before = torch.get_num_threads(), settings()
    with reproducible(1):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    assert (torch.get_num_threads(), settings()) == before


def test_eval_and_predict_compute_with_the_settings_of_training(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before, net = settings(), Net()
    with reporting_nondeterministic(print):
        Classifier(net, Normalization((0.5,), (0.5,)), "fp32", CPU)(torch.zeros(2, 16, 16, 1))
    assert net.seen == {(1, False, False)}  # 1: deterministic, or a warning
    assert settings() == before


def test_of_several_threads_the_last_restores_the_settings():
    before, inside, leave = settings(), Event(), Event()

    def other():
        with deterministic():
            inside.set()
            leave.wait(20)

    thread = Thread(target=other)
    with deterministic():
        thread.start()
        assert inside.wait(20)
    assert torch.are_deterministic_algorithms_enabled()
    leave.set()
    thread.join()
    assert settings() == before


def test_each_operation_is_told_once_in_every_run_and_other_warnings_are_shown():
    for _ in range(2):
        told = []
        with deterministic(), warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            with reporting_nondeterministic(told.append) as found:
                put()
                put()
                warnings.warn("something else", stacklevel=1)
        assert found == ["put_"]
        assert told == ["put_ has no deterministic kernel here: bits may differ next time"]
        assert [str(warning.message) for warning in shown] == ["something else"]


@pytest.mark.parametrize(
    ("kernels", "expected"), [("repeatable", (1, False)), ("fastest", (0, True))]
)
def test_training_computes_with_the_kernels_that_were_asked_for(bars, tmp_path, kernels, expected):
    before, net = settings(), Net()
    fields = {"epochs": 1, "image_size": "16", "folds": 1, "threads": 1, "plan": "default"}
    seen = net.seen
    train(bars, out=tmp_path / "run", model=net, kernels=kernels, **fields)
    assert expected in {(mode, benchmark) for mode, _, benchmark in seen}
    assert settings() == before


def test_a_run_names_the_operation_that_gives_other_bits(bars, tmp_path, capsys):
    fields = {"epochs": 2, "image_size": "16", "folds": 1, "threads": 1, "plan": "default"}
    run = train(bars, out=tmp_path / "run", model=Net(), reporter=Reporter(), **fields)
    assert capsys.readouterr().err.count("put_ has no deterministic kernel here") == 1
    plan = json.loads((run.path / "plan.json").read_text())
    assert plan["unrepeatable"]["value"] == ["put_"]
    assert "put_" in (run.path / "report.html").read_text()
    sound = train(bars, out=tmp_path / "sound", model="linear", **fields)
    assert "unrepeatable" not in json.loads((sound.path / "plan.json").read_text())
