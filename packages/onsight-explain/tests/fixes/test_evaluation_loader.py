"""Evaluation's loader is fixed like the one that trains, if evaluation takes its time."""

from dataclasses import replace

import pytest

from onsight_explain.script.trace import LoaderFacts

SCRIPT = """
from torch.utils.data import DataLoader
train_loader = DataLoader(train_set, 4, shuffle=True, num_workers=2)
test_loader = DataLoader(test_set, 4, num_workers=2)
"""


@pytest.fixture
def found(script, traced):
    """A function that fixes the script; facts: of evaluation's loader, and of the trace."""

    def fix(changes, loader=None, **facts):
        written = script(SCRIPT)
        judging = {
            "site": written.call("DataLoader", 1),
            "batch_size": 4,
            "workers": 2,
            "is_pinned": False,
            "is_persistent": False,
            "is_shuffled": False,
            "items": 50,
        }
        seen = {
            "evaluation_loader": LoaderFacts(**judging | (loader or {})),
            "phases": {"evaluation": 0.2, "data": 0.8},
            "images": 100,
            "evaluated": 50,
        }
        trace = replace(traced(written.call("DataLoader")), **seen | facts)
        return written.fix(trace, **changes).after.decode()

    return fix


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"workers": 0}, "num_workers=0"),
        ({"workers": 1}, "num_workers=1"),
        ({"persistent_workers": True}, "persistent_workers=True"),
        ({"pin_memory": True}, "pin_memory=True"),
        ({"cache": "items"}, "CachedBatches(test_set)"),
    ],
)
def test_both_loaders_are_fixed(found, changes, keyword):
    assert keyword in found(changes).splitlines()[-1]
    assert keyword.replace("test", "train") in found(changes)


@pytest.mark.parametrize(
    "facts",
    [
        {"phases": {"evaluation": 0.01, "data": 0.9}, "evaluated": 1},  # it takes no time
        {"loader": {"maker": "lightning"}},  # it is not the script that makes it
        {"loader": {"workers": 0}},  # it is as it should be
        {"loader": {"site": None}},
    ],
)
def test_it_stays_where_nothing_is_gained(found, facts):
    assert SCRIPT.splitlines()[-1] in found({"workers": 0}, **facts)


def test_loading_for_evaluation_counts_even_where_its_forwards_are_short(found):
    text = found({"workers": 0}, phases={"evaluation": 0.01, "data": 0.9})
    assert text.count("num_workers=0") == 2


def test_changes_of_training_alone_leave_it(found):
    assert SCRIPT.splitlines()[-1] in found({"batch_factor": 4})
