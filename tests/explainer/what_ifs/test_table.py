"""All what-ifs together: names, order, and torch restored afterwards."""

import pytest
import torch
from torch.utils.data import DataLoader

from onsight.explainer.script.trace import Request
from onsight.explainer.what_ifs.table import TABLE, what_ifs_for, what_ifs_from


def test_names_are_unique():
    names = [kind.name for kind in TABLE]
    assert len(set(names)) == len(names)


def test_names_and_values_survive_json():
    changes = {"rare_reads": (3, 9), "cache": "items", "bf16": True, "workers": 1}
    request = Request(
        script="train.py", args=[], seconds=1, steps=1, limit_seconds=1, out="out", changes=changes
    )
    read = Request.model_validate_json(request.model_dump_json())
    assert what_ifs_from(read.changes) == what_ifs_from(changes)
    assert type(read.changes["workers"]) is int


def test_what_ifs_are_made_in_the_order_of_the_table():
    made = what_ifs_from({"bf16": True, "cache": "fixed", "augment_batches": True})
    assert [one.name for one in made] == ["augment_batches", "cache", "bf16"]
    with pytest.raises(KeyError):
        what_ifs_from({"magic": True})


def test_what_is_tried_for_a_plain_script(seen):
    labels = [one.label for one in what_ifs_for(seen(shape=[3, 32, 32]))]
    assert labels == [
        "1 worker",
        "2 workers",
        "4 workers",
        "items kept in memory",
        "batch 64",
        "1 thread",
        "4 threads",
        "threads that spin briefly",
        "channels last",
        "bf16 autocast",
    ]


def test_everything_is_restored(apply):
    before = DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__
    hooks = apply(threads=1, fused=True, workers=1, bf16=True)
    assert before[0] is not DataLoader.__init__
    hooks.patches.undo()
    assert before == (DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__)
