"""Whether two trainings are the same, by their first losses."""

import pytest

from onsight_explain.process.bench import compare_losses
from onsight_explain.what_ifs.what_if import make_what_ifs

LOSSES = [2.0, 1.9, 1.8, 1.7, 1.6]


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "same"), (1.01, "close"), (1.05, "alike"), (1.5, "other")]
)
def test_losses_are_compared(factor, expected):
    changed = [factor * loss for loss in LOSSES]
    assert compare_losses(LOSSES, changed, make_what_ifs({"threads": 1}), []) == expected


def test_losses_of_different_batches_are_not_compared():
    assert (
        compare_losses(LOSSES, LOSSES, make_what_ifs({"batch_factor": 4}), []) == "not comparable"
    )
    assert compare_losses(LOSSES, LOSSES, [], ["kept a part"]) == "not comparable"
    assert compare_losses(LOSSES, [], [], []) == "not comparable"


@pytest.mark.parametrize("what_ifs", [{"threads": 1}, {"batch_factor": 4}])
def test_a_loss_that_becomes_nan_differs(what_ifs):
    changed = [*LOSSES[:-1], float("nan")]
    assert compare_losses(LOSSES, changed, make_what_ifs(what_ifs), []) == "other"
