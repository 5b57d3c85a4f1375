"""Which what-ifs are combined, with a launcher whose speeds are planted."""

import pytest
from onsight.explainer.script.trials import Trials, compare_losses

from onsight.errors import ScriptFailed
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.table import what_ifs_from
from onsight.report.console import SilentReporter

LOSSES = [2.0, 1.9, 1.8, 1.7, 1.6]


class Planted:
    """Runs at 100 images/s, times the factor of every change; some changes fail."""

    def __init__(self, factors, fails=()):
        self.factors, self.fails, self.asked = factors, fails, []

    def run(self, what_ifs=(), is_full=False):
        changed = [one.name for one in what_ifs]
        self.asked.append(set(changed))
        if set(changed) & set(self.fails):
            raise ScriptFailed("Traceback\nValueError: planted")
        rate = 100.0
        for name in changed:
            rate *= self.factors[name]
        return Trace(
            ended="window", startup_seconds=1.0, seconds=1.0, images=int(rate), losses=LOSSES
        )


def run(factors, fails=()):
    launcher = Planted(factors, fails)
    plain = launcher.run()
    values = {"threads": 1, "bf16": True, "workers": 2, "cache": "items", "fused": True}
    wanted = [what_if for name in factors for what_if in what_ifs_from({name: values[name]})]
    tried, best = Trials(launcher, plain, SilentReporter()).run(wanted)
    return launcher, tried, best


def test_the_best_changes_are_combined():
    _, tried, best = run({"threads": 1.5, "bf16": 2.0, "fused": 1.01})
    assert [round(one.ratio, 2) for one in tried] == [1.5, 2.0, 1.01]
    assert best.name == "bf16 autocast + 1 thread"
    assert best.ratio == pytest.approx(3.0)


def test_only_the_best_of_a_group_is_taken():
    launcher, _, best = run({"workers": 1.5, "cache": 3.0})
    assert best.name == "items kept in memory"
    assert {"workers", "cache"} not in launcher.asked


def test_a_change_that_adds_nothing_is_left_out():
    class Saturated(Planted):
        def run(self, what_ifs=(), is_full=False):
            trace = super().run(what_ifs)
            return trace.model_copy(update={"images": min(trace.images, 200)})

    launcher = Saturated({"bf16": 2.0, "threads": 1.5})
    plain = launcher.run()
    wanted = what_ifs_from({"bf16": True, "threads": 1})
    _, best = Trials(launcher, plain, SilentReporter()).run(wanted)
    assert best.name == "bf16 autocast"


def test_a_failing_change_is_reported_with_the_last_line_and_the_others_continue():
    _, tried, best = run({"bf16": 1.0, "threads": 1.5}, fails=["bf16"])
    assert tried[0].problem == "ValueError: planted"
    assert best.name == "1 thread"


def test_without_a_gain_there_is_no_best():
    assert run({"bf16": 1.01, "threads": 0.5})[2] is None


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, "same"), (1.01, "close"), (1.05, "alike"), (1.5, "other")]
)
def test_losses_are_compared(factor, expected):
    changed = [factor * loss for loss in LOSSES]
    assert compare_losses(LOSSES, changed, what_ifs_from({"threads": 1}), []) == expected


def test_losses_of_different_batches_are_not_compared():
    assert (
        compare_losses(LOSSES, LOSSES, what_ifs_from({"batch_factor": 4}), []) == "not comparable"
    )
    assert compare_losses(LOSSES, LOSSES, [], ["kept a part"]) == "not comparable"
    assert compare_losses(LOSSES, [], [], []) == "not comparable"
