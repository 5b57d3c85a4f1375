"""A signal that comes when training has no step left is obeyed too."""

import signal
from contextlib import contextmanager

import pytest
from portable import THREADS

import onsight
from onsight.errors import Interrupted
from onsight.ranks.signals import StopRequest, request_stop, stop_on_signals
from onsight.report.console import SilentReporter
from onsight.training.saving import CheckpointWriter
from onsight.training.verify_resume import compare_folders


@contextmanager
def received(number):
    """Signals that reach the handler from before a run."""
    numbers = []
    former = signal.signal(number, lambda number, frame: numbers.append(number))
    try:
        yield numbers
    finally:
        signal.signal(number, former)


@pytest.mark.needs_learned("a run that learns is compared with it, bit for bit")
def test_a_stop_while_the_last_checkpoint_is_written(bars, tmp_path, monkeypatch, trained):
    real = CheckpointWriter.wait

    def asked(self):
        request_stop(signal.SIGHUP)
        real(self)

    fields = {"epochs": 3, "batch_size": 16, "threads": THREADS, "reporter": SilentReporter()}
    with monkeypatch.context() as patch, received(signal.SIGHUP) as passed_on:
        patch.setattr(CheckpointWriter, "wait", asked)
        with pytest.raises(Interrupted, match="after the last epoch, before the results") as ended:
            onsight.train(bars, out=tmp_path / "run", **fields)
    assert ended.value.exit_code == 129
    assert passed_on == []
    assert not (tmp_path / "run" / "results.json").exists()
    onsight.train(bars, out=tmp_path / "run", resume=True, reporter=SilentReporter())
    assert compare_folders(trained.path, tmp_path / "run").differences == []


def obey(number):
    with stop_on_signals(StopRequest()):
        signal.raise_signal(number)
        raise Interrupted("obeyed", number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_nobody_looked_for_any_more_goes_to_the_former_handler(number):
    with received(number) as passed_on:
        with stop_on_signals(StopRequest()):
            signal.raise_signal(number)
            assert passed_on == []
        assert passed_on == [number]
        with pytest.raises(Interrupted):
            obey(number)
        assert passed_on == [number]
