"""Chooses how a run computes its steps: as configured, cached, measured or by default."""

import math
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from onsight.choice import Choice
from onsight.config import Config, step_time_fields
from onsight.data.cache import (
    cached_json_path,
    find_cache_folder,
    read_cached_json,
    write_cached_json,
)
from onsight.data.index import TRAIN
from onsight.errors import DiskError
from onsight.features.feature_pass import compute_features
from onsight.hardware.devices import describe_device
from onsight.models.classifier import Classifier
from onsight.report.console import Reporter
from onsight.step.timing import Timing
from onsight.tune.batch_size import MIN_BATCH_SIZE
from onsight.tune.compute import (
    ComputeOptions,
    Stage,
    default_options,
    may_compile,
    may_graph,
    open_stages,
)
from onsight.tune.folds import expected_seconds
from onsight.tune.plan import ComputePlan, choose_threads, has_native_bf16
from onsight.tune.probe import NEGLIGIBLE, Measured, Probe
from onsight.tune.training_data import TrainingData
from onsight_explain.devices import is_out_of_memory
from onsight_explain.threads import is_busy, thread_variables_set_by_user, usable_cores

_BY_RULE = "by rule, so that every run computes the same; --plan fresh measures what is fastest"
_MIN_RUN_SECONDS = 10.0  # shorter runs end before measuring has paid for itself
_MIN_GRAPHED_STEPS = 100  # recording a graph takes as long as a few dozen steps made one by one
_MEASURING_SHARE = 0.05  # of the run's time
_MIN_MEASURING_SECONDS = 1.5
_MAX_MEASURING_SECONDS = 5.0

_MEASURED_OPTIONS = 4  # built and checked in the first round
_MEASURED_STEPS = 4  # of each
_COMPILE_SECONDS = 120.0  # compiling a large network may take this long

_VERSION = 5  # of cached plans; increased when options are measured or chosen differently


@dataclass(frozen=True)
class MeasuringBudget:
    """How much time measuring a plan may take."""

    seconds: float  # for all of it
    build_seconds: float  # to make a network
    step: Timing  # seconds of a training step

    def choose_images(self, batch_size: int, max_seconds: float) -> int:
        """Return how many images of a batch to measure with, or 0 if not even 8 can be.

        Args:
            batch_size: It is halved until one round of all options fits.
            max_seconds: How long measuring should take.
        """
        images = batch_size
        while self._round_seconds(images) > min(self.seconds / 2, 2 * max_seconds):
            if images <= MIN_BATCH_SIZE:
                return 0
            images = max(MIN_BATCH_SIZE, images // 2)
        return images

    def seconds_worth_compiling(self, training_seconds: float) -> float:
        """Return the seconds of training that may justify compiling; 0 if it takes too long."""
        return training_seconds if self.seconds > _COMPILE_SECONDS else 0.0

    def _round_seconds(self, images: int) -> float:
        return _MEASURED_OPTIONS * (self.build_seconds + _MEASURED_STEPS * self.step.at(images))


UNLIMITED = MeasuringBudget(math.inf, 0.0, Timing({1: 0.0}))


def choose_compute(
    config: Config,
    data: TrainingData,
    reporter: Reporter,
    left_seconds: float | None = None,
    budget: MeasuringBudget = UNLIMITED,
) -> ComputePlan:
    """Choose precision, memory format, threads, compiling and parts of a batch.

    They are measured if there is a budget or --plan fresh asks for it, which takes a few seconds.
    Otherwise no clock decides: all but what an earlier --plan fresh has kept follows from a rule.

    Args:
        left_seconds: The time for training, if there is a budget.
    """
    seconds = _training_seconds(config, data) if left_seconds is None else left_seconds
    default = default_options(config, data.device, choose_threads(config.threads).value)
    stages = open_stages(config, data, budget.seconds_worth_compiling(seconds))
    if config.plan == "default" or not stages:
        reason = "nothing is left open" if config.plan != "default" else "set by you"
        return unmeasured_plan(config, default, f"not measured: {reason}")
    path = _cache_path(config, data, seconds)
    if config.plan == "auto" and not config.budget:
        cached = read_cached_json(path, _parse_plan) if path else None
        if cached:
            reporter.detail(f"plan: kept from an earlier run ({path}; --plan fresh measures again)")
            return _measured_plan(config, cached, "kept from an earlier run")
        return _plan_by_rule(config, data, default, _BY_RULE)
    if seconds < _MIN_RUN_SECONDS:
        reason = "not measured: the run is too short to gain from it"
        return _plan_by_rule(config, data, default, reason)
    max_seconds = max(_MIN_MEASURING_SECONDS, _MEASURING_SHARE * seconds)
    max_seconds = min(_MAX_MEASURING_SECONDS, max_seconds)
    images = budget.choose_images(config.batch_size, max_seconds)
    if not images:
        reason = f"it would take more than the {budget.seconds:.1f} s there are for it"
        return unmeasured_plan(config, default, f"not measured: {reason}")
    begun = time.perf_counter()
    probe = Probe(config, data, budget.seconds, images)
    measured = _measure(probe, stages, default, max_seconds)
    took = time.perf_counter() - begun
    ways = len(measured.seconds)
    reporter.detail(f"plan: measured {ways} ways to compute a step in {took:.1f} s")
    if path and not is_busy():  # later runs may find the machine idle
        error = write_plan(path, measured)
        if error:
            reporter.warn(f"the plan could not be kept for the next run: {error}")
    return _measured_plan(config, measured, f"measured in {took:.1f} s")


def _plan_by_rule(
    config: Config, data: TrainingData, options: ComputeOptions, reason: str
) -> ComputePlan:
    plan = unmeasured_plan(config, options, reason)
    if _count_steps(config, data) < _MIN_GRAPHED_STEPS or not may_graph(config, data.device):
        return plan
    # Launching kernels one by one may make a run several times as long as was estimated.
    reason += "; launching a graph takes less time than launching its kernels"
    return replace(plan, cuda_graph=Choice("on", reason))


def _training_seconds(config: Config, data: TrainingData) -> float:
    return expected_seconds(
        data.new_network(config),
        data.dataset.input_shape,
        config.epoch_count * len(data.dataset.ids(TRAIN)),
        _count_steps(config, data),
        data.device,
    )


def _count_steps(config: Config, data: TrainingData) -> int:
    return config.epoch_count * math.ceil(len(data.dataset.ids(TRAIN)) / config.batch_size)


def _cache_path(config: Config, data: TrainingData, seconds: float) -> Path | None:
    """Return where the plan is cached, or None if it must not be.

    With a budget, what counts is which options are fastest now, beside the machine's other work.
    """
    folder = find_cache_folder(config.cache_folder)
    if not folder or data.module is not None or config.budget:
        return None
    dataset = data.dataset
    key = {
        "machine": [describe_device(data.device), platform.machine(), usable_cores()],
        "torch": torch.__version__,
        "threads": thread_variables_set_by_user(os.environ),
        "shape": [*dataset.input_shape, *dataset.images.shape, len(dataset.classes)],
        "config": {name: getattr(config, name) for name in step_time_fields()},
        "may_compile": may_compile(config, data.device, seconds),
    }
    return cached_json_path(folder, "plans", _VERSION, key)


def unmeasured_plan(config: Config, options: ComputeOptions, reason: str) -> ComputePlan:
    """Return the plan for options that are used without measuring."""
    choices = {
        name: Choice(value, _configured(config, name) or reason)
        for name, value in asdict(options).items()
    }
    return ComputePlan(**choices, measured=Choice([], reason))


def _measured_plan(config: Config, measured: Measured, reason: str) -> ComputePlan:
    """Return the plan for options that were chosen by measuring, each with its figure."""
    rows: list[dict[str, Any]] = [
        {**asdict(options), "images_per_second": round(config.batch_size / seconds, 1)}
        for options, seconds in measured.seconds.items()
    ]
    rows += [{**asdict(options), "refused": why} for options, why in measured.refused.items()]
    choices = {name: _explain(config, name, measured) for name in asdict(measured.chosen)}
    return ComputePlan(**choices, measured=Choice(rows, reason))


def _measure(
    probe: Probe, stages: list[Stage], default: ComputeOptions, max_seconds: float
) -> Measured:
    """Measure, splitting batches into ever more parts until they fit into memory."""
    while True:
        try:
            return probe.measure(stages, default, max_seconds)
        except RuntimeError as error:
            if not is_out_of_memory(error) or 2 * default.accumulate > probe.batch_size:
                raise
        default = replace(default, accumulate=2 * default.accumulate)


def _configured(config: Config, name: str) -> str:
    """Return the reason for a configured setting; empty if it is left open."""
    is_open = getattr(config, name) == Config.model_fields[name].default
    return "" if is_open else "set by you"


def _explain(config: Config, name: str, measured: Measured) -> Choice[Any]:
    """Return a choice with how much faster it is than the best options that differ in it."""
    value = getattr(measured.chosen, name)
    if name == "accumulate":
        if value != max(1, config.accumulate):
            return Choice(value, "memory ran out with fewer parts")
        return Choice(value, _configured(config, name) or "a whole batch fits in memory")
    others = [options for options in measured.seconds if getattr(options, name) != value]
    if not others:
        return Choice(value, _configured(config, name) or _why_alone(name, value, measured))
    other = min(others, key=lambda options: measured.seconds[options])
    rate, other_rate = (
        config.batch_size / measured.seconds[options] for options in (measured.chosen, other)
    )
    versus = f"{rate:,.0f} against {other_rate:,.0f} images/s with {other}"
    if rate > NEGLIGIBLE * other_rate:
        reason = f"{rate / other_rate:.2f} times as fast: {versus}"
    else:
        reason = f"simpler, and as fast within the noise: {versus}"
    return Choice(value, reason, figure=rate)


def _why_alone(name: str, value: Any, measured: Measured) -> str:
    """Return why a choice was compared with no other."""
    for options, reason in measured.refused.items():
        if getattr(options, name) != value:
            return f"{options} was refused: {reason}"
    return "the run is too short for compiling" if name == "compile" else "nothing else was tried"


def write_plan(path: Path, plan: Measured) -> OSError | DiskError | None:
    """Cache a plan for later runs; return the error if the disk does not allow it."""
    facts = {
        "chosen": asdict(plan.chosen),
        "seconds": [(asdict(options), seconds) for options, seconds in plan.seconds.items()],
        "refused": [(asdict(options), reason) for options, reason in plan.refused.items()],
    }
    return write_cached_json(path, facts)


def _parse_plan(facts: Any) -> Measured | None:
    seconds = {ComputeOptions(**options): float(time) for options, time in facts["seconds"]}
    refused = {ComputeOptions(**options): str(reason) for options, reason in facts["refused"]}
    plan = Measured(ComputeOptions(**facts["chosen"]), seconds, refused)
    return plan if plan.chosen in plan.seconds else None


_COMPARED_IMAGES = 4
_MIN_COSINE = 0.99  # between an image's features in both precisions


def choose_inference(config: Config, data: TrainingData, plan: ComputePlan) -> ComputePlan:
    """Return the plan with bf16 for a frozen backbone, if this CPU has it and the features agree.

    No clock decides, because features decide which head is fitted.
    """
    if config.plan == "default" or data.device.type != "cpu" or config.precision != "auto":
        return plan
    if not has_native_bf16():
        return replace(plan, precision=Choice("fp32", "this processor would only emulate bf16"))
    net = data.new_network(config)
    batch = next(iter(data.images.batches([data.dataset.ids(TRAIN)[:_COMPARED_IMAGES]], None)))
    exact, rounded = (
        compute_features(Classifier(net, data.normalization, precision, data.device), [batch])
        for precision in ("fp32", "bf16")
    )
    cosine = float(F.cosine_similarity(exact, rounded).min())
    reason = (
        "this processor computes bf16, and the cosine similarity of its features to those of fp32 "
        f"is at least {cosine:.4f} (n = {len(batch.ids)} images)"
    )
    precision = "bf16" if cosine > _MIN_COSINE else "fp32"
    return replace(plan, precision=Choice(precision, reason, figure=cosine))
