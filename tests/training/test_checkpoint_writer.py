"""Checkpoints are written beside training: in order, one at a time, and no error is lost."""

import threading

import pytest
import torch

from onsight.errors import DiskError
from onsight.tensorfile import read_tensors
from onsight.training.checkpoint import Snapshot, snapshot_weights
from onsight.training.saving import CheckpointWriter

SOON = 20.0


class Slow(Snapshot):
    """Waits to be let go before it is written."""

    def __init__(self, written):
        super().__init__({}, {})
        object.__setattr__(self, "let_go", threading.Event())
        object.__setattr__(self, "written", written)

    def write(self, path):
        assert self.let_go.wait(SOON)
        self.written.append(path.name)


class Full(Snapshot):
    def write(self, path):
        raise DiskError(f"no space left while writing {path}")


def test_training_goes_on_while_a_file_is_written(tmp_path):
    written = []
    with CheckpointWriter() as writer:
        best, last = Slow(written), Slow(written)
        writer.write(tmp_path / "best", best)
        writer.write(tmp_path / "last", last)
        assert written == []
        last.let_go.set()
        best.let_go.set()
        writer.wait()
        assert written == ["best", "last"]


def test_at_most_two_copies_wait(tmp_path):
    written = []
    snapshots = [Slow(written) for _ in range(3)]
    with CheckpointWriter() as writer:
        for name in range(2):
            writer.write(tmp_path / str(name), snapshots[name])
        third = threading.Thread(target=writer.write, args=(tmp_path / "2", snapshots[2]))
        third.start()
        third.join(0.3)
        assert third.is_alive()
        for one in snapshots:
            one.let_go.set()
        third.join(SOON)
    assert written == ["0", "1", "2"]


def test_a_snapshot_is_of_its_moment(tmp_path):
    net = torch.nn.Linear(2, 1)
    taken = snapshot_weights(net)
    before = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.add_(1.0)
    with CheckpointWriter() as writer:
        writer.write(tmp_path / "weights", taken)
    assert read_tensors(tmp_path / "weights")[0]["weight"].equal(before)


def test_nothing_is_written_after_a_file_that_failed(tmp_path):
    written = []
    writer = CheckpointWriter()
    last = Slow(written)
    last.let_go.set()
    writer.write(tmp_path / "best", Full({}, {}))
    writer.pending = []  # the error is not raised yet
    writer.write(tmp_path / "last", last)
    writer.wait()
    assert written == []


def test_an_error_is_raised_by_the_next_call(tmp_path):
    writer = CheckpointWriter()
    writer.write(tmp_path / "first", Full({}, {}))
    with pytest.raises(DiskError, match="first"):
        writer.wait()


def test_an_error_is_raised_at_the_end_but_hides_no_other(tmp_path):
    with pytest.raises(DiskError, match="first"), CheckpointWriter() as writer:
        writer.write(tmp_path / "first", Full({}, {}))

    def fail(writer):
        writer.write(tmp_path / "first", Full({}, {}))
        raise KeyError

    with pytest.raises(KeyError), CheckpointWriter() as writer:
        fail(writer)
