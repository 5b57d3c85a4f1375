"""What fits into a budget, by made-up times: epochs, and measuring a plan."""

from unittest.mock import Mock

import pytest
from prepared import make_prepared
from slow import Clock

from onsight.config import make_config
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.deadline import Deadline
from onsight.ranks.world import World
from onsight.report.console import SilentReporter
from onsight.step.timing import Timing
from onsight.tune.fit_epochs import (
    SLOWER,
    Estimates,
    count_evaluated,
    fit_epochs,
    reserve_evaluation,
)
from onsight.tune.planning import UNLIMITED, MeasuringBudget


def test_every_view_counts_as_evaluated():
    assert count_evaluated(make_config({}), 50, 100) == 100
    assert count_evaluated(make_config({}), 50, 0) == 50  # the only held-out part
    assert count_evaluated(make_config({"tta": "flip-shift"}), 50, 100) == 700


def test_a_plan_is_measured_with_as_much_of_a_batch_as_there_is_time_for():
    step = Timing({8: 0.08})
    # A round is 4 options, each with a network of 0.5 s and 4 steps of 0.01 s per image.
    assert (
        MeasuringBudget(60.0, 0.5, step).choose_images(128, 5.0) == 32
    )  # 4 * (0.5 + 4 * 0.32) = 7.1 s
    assert MeasuringBudget(60.0, 0.5, step).choose_images(128, 50.0) == 128  # 22.5 s of 30
    assert MeasuringBudget(8.0, 0.5, step).choose_images(128, 5.0) == 8  # 3.3 s of 4
    assert MeasuringBudget(6.0, 0.5, step).choose_images(128, 5.0) == 0
    assert UNLIMITED.choose_images(128, 5.0) == 128


def test_compiling_is_tried_only_if_it_fits():
    assert MeasuringBudget(360.0, 0.5, Timing({8: 0.1})).seconds_worth_compiling(4000) == 4000
    assert MeasuringBudget(60.0, 0.5, Timing({8: 0.1})).seconds_worth_compiling(4000) == 0


def test_epochs_count_their_training_and_their_validation(bars):
    fields = {"model": "lenet", "image_size": "32", "batch_size": 16}
    config, prepared = make_prepared(bars, threads=1, **fields)
    training, validation, test = (
        len(prepared.dataset.ids(split)) for split in (TRAIN, VALIDATION, TEST)
    )
    deadline = Deadline(60, Clock(2.0))
    judged = SLOWER * 0.05
    assert reserve_evaluation(deadline, config, prepared.dataset, judged) == validation
    estimates = Estimates(0.16, judged)
    fitted = fit_epochs(config, prepared.dataset, estimates, deadline, World(), SilentReporter())
    # The test part, the temperature and the detector come later, and one validation is the last.
    left = 60 - 2 - judged * (test + validation + 2 * validation + validation)
    assert validation > 5
    assert fitted.value == round(left / (0.01 * training + judged * validation))


@pytest.mark.parametrize(("step_seconds", "notes"), [(0.5, 0), (5.0, 1)])
def test_a_budget_of_few_epochs_is_noted(bars, step_seconds, notes):
    config, prepared = make_prepared(bars, threads=1, model="lenet", image_size="32", batch_size=16)
    reporter = Mock(SilentReporter)
    deadline = Deadline(60, Clock(20.0))
    fit_epochs(config, prepared.dataset, Estimates(step_seconds), deadline, World(), reporter)
    assert reporter.warn.call_count == notes
    if notes:
        epochs = 40 / (len(prepared.dataset.ids(TRAIN)) / 16 * step_seconds)
        (text,) = reporter.warn.call_args.args
        assert text.startswith(
            "budget: 20 of 60 s are spent, which leaves time for only about "
            f"{epochs:.1f} epochs; with twice the budget, there would be about {2.5 * epochs:.0f}"
        )
