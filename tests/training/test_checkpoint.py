"""A checkpoint that cannot be gone on from."""

import math
import shutil

import pytest
from torch import zeros

import onsight
from onsight.errors import OnsightError
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors, write_tensors
from onsight.training.checkpoint import read_checkpoint
from onsight.training.progress import check_progress

FAST = {"model": "linear", "epochs": 1, "batch_size": 16, "device": "cpu"}


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    write_tensors(tmp_path / "last.safetensors", {}, {"version": 99})
    with pytest.raises(OnsightError, match="last.safetensors .*version"):
        read_checkpoint(tmp_path / "last.safetensors")


@pytest.fixture(scope="module")
def finished(shared_bars, train_once):
    return train_once("finished", shared_bars, report=False, **FAST).path


def change(facts, tensors):
    """Each way to alter a checkpoint, by a name."""
    progress, optimizer = facts["progress"], facts["optimizer"]
    name = next(iter(tensors))
    return {
        "no progress": (tensors, {**facts, "progress": None}),
        "progress of words": (tensors, {**facts, "progress": progress | {"epoch": "two"}}),
        "epoch before the first": (tensors, {**facts, "progress": progress | {"epoch": -5}}),
        "epoch after the last": (tensors, {**facts, "progress": progress | {"epoch": 10**9}}),
        "step after the last": (tensors, {**facts, "progress": progress | {"step": 10**9}}),
        "no number": (tensors, {**facts, "progress": progress | {"epoch_loss": math.nan}}),
        "too large a number": (tensors, {**facts, "progress": progress | {"images": 10**400}}),
        "progress unknown": (tensors, {**facts, "progress": progress | {"mood": 1}}),
        "no optimizer": (tensors, {key: facts[key] for key in facts if key != "optimizer"}),
        "no groups": (tensors, {**facts, "optimizer": optimizer | {"groups": []}}),
        "other values": (tensors, {**facts, "optimizer": optimizer | {"values": {"x.y": 1}}}),
        "a tensor less": ({key: tensors[key] for key in tensors if key != name}, facts),
        "a tensor of another shape": (tensors | {name: tensors[name].flatten()[:1]}, facts),
        "a list": (tensors, [1]),
    }


@pytest.mark.parametrize("name", change({"progress": {}, "optimizer": {}}, {"a": zeros(2)}))
def test_an_altered_checkpoint_ends_in_one_message(shared_bars, finished, tmp_path, name):
    out = shutil.copytree(finished, tmp_path / "run")
    (out / "results.json").unlink()  # stopped before the end
    last = out / "checkpoints" / "last.safetensors"
    tensors, facts = read_tensors(last)
    altered, others = change(facts, {key: one.clone() for key, one in tensors.items()})[name]
    write_tensors(last, altered, others)
    with pytest.raises(OnsightError, match="last.safetensors") as said:
        onsight.train(shared_bars, out=out, resume=True, reporter=SilentReporter(), **FAST)
    assert said.value.exit_code == 2


@pytest.mark.parametrize(("name", "value"), [("epoch", 0.5), ("rows", "none")])
def test_progress_with_a_value_of_another_type_is_refused(name, value):
    """Neither value is impossible otherwise."""
    with pytest.raises(TypeError, match=name):
        check_progress({"epoch": 0, "rows": [{}], name: value})
