"""What fits into a budget, by made-up paces: image size, batch size, least budget."""

import pytest
import torch
from prepared import make_prepared
from slow import Clock

from onsight.config import make_config
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.sources.find import find_source
from onsight.deadline import Deadline
from onsight.report.console import SilentReporter
from onsight.step.timing import Timing
from onsight.tune.batch_size import fit_batch
from onsight.tune.budget import Budget
from onsight.tune.fit_epochs import SLOWER, Estimates, fit_epochs, reserve_evaluation
from onsight.tune.fit_size import (
    Undecoded,
    Workload,
    evaluated_images,
    fit_image_size,
    is_enough,
    least_budget_seconds,
    too_small,
)
from onsight.tune.pace import Pace
from onsight.tune.planning import UNLIMITED, MeasuringBudget

CPU = torch.device("cpu")
SLOW = Pace((224, 224), 0.002, 0.5, Timing({2: 0.2}), Timing({2: 0.04}))
WORK = Workload(decoded=5000, evaluated=500)


def test_larger_images_are_chosen_only_with_enough_time():
    pace = Pace((64, 64), 0.001, 0.0, Timing({128: 0.128}), Timing({1: 0.0}))
    for seconds, side in ((0.5, 32), (2, 32), (3.5, 48), (6, 64), (60, 96), (200, 128)):
        assert fit_image_size(pace, 1000, seconds, 0.0).value == (side, side)
    # 10 s for epochs of 1 s, at 64x64; 96x96 would take 2.25 s each.
    choice = fit_image_size(pace, 1000, 11, 40)
    assert choice.reason.startswith("the largest that there is time to train on, about 10.0 epochs")
    assert choice.reason.endswith("with twice the time 96x96")


def test_the_least_budget_is_the_sum_of_its_parts():
    # spent 4, decoding 10, two networks 1, four steps of 8 images 3.2, evaluation 10, closing 2
    assert least_budget_seconds(SLOW, WORK, 4.0, 2.0) == pytest.approx(30.2)
    larger = Workload(5000, 500, batch_size=128)
    assert least_budget_seconds(SLOW, larger, 4.0, 2.0) == pytest.approx(30.2 - 3.2 + 51.2)


def test_a_refusal_names_the_least_budget_and_a_size_that_fits():
    clock = Clock(4.0)
    config = make_config({"budget": "22s", "model": "resnet18"})
    budget = Budget(Deadline(22.0, clock))  # closing takes 3.6 s, so the sum is 31.8 s
    assert not is_enough(budget, SLOW, WORK)
    # At 64x64 steps and evaluation take 8% of 13.2 s: 19.7 s in all; at 96x96 it is 21.0 s,
    # which is too close to 22 s.
    assert str(too_small(budget, config, SLOW, WORK)) == (
        "--budget 22s is too short for resnet18 at 224x224 on 5,000 images: at least "
        "about 35 s here; give that, or --image-size 64"
    )
    assert is_enough(Budget(Deadline(32.0, clock)), SLOW, WORK)
    assert str(too_small(Budget(Deadline(12.0, clock)), config, SLOW, WORK)).endswith(
        "here; give that"
    )


def test_every_view_counts_as_evaluated():
    assert evaluated_images(make_config({}), 50, 100) == 100
    assert evaluated_images(make_config({}), 50, 0) == 50  # the only held-out part
    assert evaluated_images(make_config({"tta": "flip-shift"}), 50, 100) == 700


def test_a_frozen_run_has_to_compute_features_of_four_images_a_class_besides(bars):
    source = find_source(str(bars))
    workloads = [
        Undecoded(source, make_config({"freeze": freeze}), CPU, 1).workload()
        for freeze in (False, True)
    ]
    assert workloads[1].evaluated - workloads[0].evaluated == 4 * len(source.index.classes)


@pytest.mark.parametrize(
    ("fields", "seconds", "fitted"),
    [
        ({}, 1000, 128),
        ({}, 30 * 12.8, 128),
        ({}, 30 * 12.8 - 0.1, 64),
        ({}, 30, 8),
        ({}, 1, 8),
        ({}, -5, 8),
        ({"batch_size": 100}, 1, 100),
        ({"batch_size": 128}, 1, 128),
    ],
)
def test_the_batch_shrinks_until_thirty_steps_fit(fields, seconds, fitted):
    config = make_config(fields)
    choice = fit_batch(config, Timing({2: 0.2}), seconds, 1000)
    assert choice.value == fitted
    again = make_config(config.model_copy(update={"batch_size": fitted}).model_dump())
    assert fit_batch(again, Timing({2: 0.2}), 1, 1000).value == fitted  # a saved config is kept


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
    budget = Budget(Deadline(60, Clock(2.0)))
    judged = SLOWER * 0.05
    assert reserve_evaluation(budget.deadline, config, prepared.dataset, judged) == validation
    estimates = Estimates(0.16, judged)
    fitted = fit_epochs(budget, config, prepared.dataset, estimates, SilentReporter())
    left = 60 - 2 - 1.8 - judged * (validation + validation + test)  # calibration is one more
    assert validation > 5
    assert fitted.epochs == round(left / (0.01 * training + judged * validation))
