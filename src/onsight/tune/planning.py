"""How a run computes its steps: as asked, kept from an earlier run, measured, or by default."""

import math
import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
from onsight.step.timing import measure_seconds
from onsight.text import joined, plural
from onsight.tune.batch_size import UNLIMITED, Allowed
from onsight.tune.compute import (
    ComputeOptions,
    Stage,
    default_options,
    may_compile,
    open_stages,
)
from onsight.tune.folds import expected_seconds
from onsight.tune.plan import ComputePlan, choose_threads
from onsight.tune.probe import NEGLIGIBLE, Measured, Probe
from onsight.tune.training_data import TrainingData
from onsight_explain.devices import is_out_of_memory
from onsight_explain.threads import is_busy, thread_variables_set_by_user, usable_cores

_WORTH_SECONDS = 10.0  # shorter runs end before measuring has paid for itself
_MOST_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.05, 1.5, 5.0  # for measuring: of the run, in seconds


def choose_compute(
    config: Config,
    data: TrainingData,
    reporter: Reporter,
    left_seconds: float | None = None,
    allowed: Allowed = UNLIMITED,
) -> ComputePlan:
    """Precision, memory format, threads, compiling and parts of a batch, each with its reason.

    left_seconds: for training, if there is a budget; allowed: what measuring may take then. Takes
    a few seconds at most, if steps do.
    """
    seconds = _training_seconds(config, data) if left_seconds is None else left_seconds
    plain = default_options(config, data.device, choose_threads(config.threads).value)
    stages = open_stages(config, data, allowed.worth_compiling(seconds))
    if config.plan == "default" or not stages:
        reason = "nothing is left open" if config.plan != "default" else "set by you"
        return unmeasured_plan(config, plain, f"not measured: {reason}")
    if seconds < _WORTH_SECONDS:
        return unmeasured_plan(config, plain, "not measured: the run is too short to gain from it")
    most = min(_MOST_SECONDS, max(_LEAST_SECONDS, _MOST_SHARE * seconds))
    images = allowed.images(config.batch_size, most)
    if not images:
        why = f"not measured: it would take more than the {allowed.seconds:.1f} s there are for it"
        return unmeasured_plan(config, plain, why)
    path = _plan_path(config, data, seconds)
    kept = read_plan(path) if path and config.plan == "auto" else None
    if kept:
        reporter.say(f"plan: kept from an earlier run ({path}; --plan fresh measures again)")
        return _measured_plan(config, kept, "kept from an earlier run")
    begun = time.perf_counter()
    probe = Probe(config, data, allowed.seconds, images)
    measured = _measure(probe, stages, plain, most)
    took = time.perf_counter() - begun
    reporter.say(f"plan: measured {len(measured.seconds)} ways to compute a step in {took:.1f} s")
    if path and not is_busy():  # a plan for a busy machine is no plan for later runs
        error = write_plan(path, measured)
        if error:
            reporter.warn(f"the plan could not be kept for the next run: {error}")
    return _measured_plan(config, measured, f"measured in {took:.1f} s")


def _training_seconds(config: Config, data: TrainingData) -> float:
    """Roughly how many seconds training takes."""
    count = len(data.dataset.ids(TRAIN))
    return expected_seconds(
        data.new_network(config),
        data.dataset.input_shape,
        config.epochs * count,
        config.epochs * math.ceil(count / config.batch_size),
        data.device,
    )


def _plan_path(config: Config, data: TrainingData, seconds: float) -> Path | None:
    """Where the plan for such a run is kept; None if it is not kept.

    A budget is best spent on what is fastest right now, with whatever else the machine is doing.
    """
    folder = find_cache_folder(config.cache_folder)
    may_keep = folder and data.module is None and not config.budget
    return plan_path(folder, config, data, seconds) if folder and may_keep else None


def unmeasured_plan(config: Config, options: ComputeOptions, why: str) -> ComputePlan:
    """The plan with options that are used without measuring."""
    choices = {
        name: Choice(value, _asked(config, name) or why) for name, value in options.facts().items()
    }
    return ComputePlan(**choices, measured=Choice([], why))


def _measured_plan(config: Config, found: Measured, why: str) -> ComputePlan:
    """The plan with the options chosen by measuring, each choice with its figure."""
    rows: list[dict[str, Any]] = [
        {**options.facts(), "images_per_second": round(config.batch_size / seconds, 1)}
        for options, seconds in found.seconds.items()
    ]
    rows += [{**options.facts(), "refused": why} for options, why in found.refused.items()]
    choices = {name: _explain(config, name, found) for name in found.chosen.facts()}
    return ComputePlan(**choices, measured=Choice(rows, why))


def _measure(
    probe: Probe, stages: list[Stage], plain: ComputeOptions, most_seconds: float
) -> Measured:
    """Measure; a batch that does not fit in memory is split into twice as many parts."""
    while True:
        try:
            return probe.measure(stages, plain, most_seconds)
        except RuntimeError as error:
            if not is_out_of_memory(error) or 2 * plain.accumulate > probe.batch_size:
                raise
        plain = replace(plain, accumulate=2 * plain.accumulate)


def _asked(config: Config, name: str) -> str:
    value = getattr(config, name)
    return "" if value in ("auto", 0) else "set by you"


def _explain(config: Config, name: str, found: Measured) -> Choice[Any]:
    """A choice with how much faster it is than the best options that differ in it."""
    value = getattr(found.chosen, name)
    if name == "accumulate":
        asked = value == config.accumulate
        return Choice(value, "as configured" if asked else "memory ran out with fewer parts")
    others = {one: s for one, s in found.seconds.items() if getattr(one, name) != value}
    if not others:
        return Choice(value, _asked(config, name) or _why_alone(name, value, found))
    other = min(others, key=lambda one: others[one])
    rates = [config.batch_size / found.seconds[one] for one in (found.chosen, other)]
    versus = f"{rates[0]:,.0f} against {rates[1]:,.0f} images/s with {other}"
    if rates[0] > NEGLIGIBLE * rates[1]:
        return Choice(value, f"{rates[0] / rates[1]:.2f} times as fast: {versus}", rates[0])
    return Choice(value, f"simpler, and as fast within the noise: {versus}", rates[0])


def _why_alone(name: str, value: Any, found: Measured) -> str:
    """Why a choice was compared with no other."""
    for options, reason in found.refused.items():
        if getattr(options, name) != value:
            return f"{options} was refused: {reason}"
    return "the run is too short for compiling" if name == "compile" else "nothing else was tried"


_VERSION = 4  # increased when options are measured or chosen differently


def plan_path(folder: Path, config: Config, data: TrainingData, expected_seconds: float) -> Path:
    """Return where the plan of such a run is cached. expected_seconds: of training."""
    dataset = data.dataset
    key = {
        "machine": [describe_device(data.device), platform.machine(), usable_cores()],
        "torch": torch.__version__,
        "threads": thread_variables_set_by_user(os.environ),
        "shape": [*dataset.input_shape, *dataset.images.shape, len(dataset.classes)],
        "config": {name: getattr(config, name) for name in step_time_fields()},
        "may_compile": may_compile(config, data.device, expected_seconds),
    }
    return cached_json_path(folder, "plans", _VERSION, key)


def read_plan(path: Path) -> Measured | None:
    """Return a cached plan, or None if there is none or it cannot be read."""
    return read_cached_json(path, _parse_plan)


def write_plan(path: Path, plan: Measured) -> OSError | DiskError | None:
    """Cache a plan for later runs; return the error if the disk does not allow it."""
    facts = {
        "chosen": plan.chosen.facts(),
        "seconds": [(options.facts(), seconds) for options, seconds in plan.seconds.items()],
        "refused": [(options.facts(), reason) for options, reason in plan.refused.items()],
    }
    return write_cached_json(path, facts)


def _parse_plan(facts: Any) -> Measured | None:
    seconds = {ComputeOptions(**options): float(time) for options, time in facts["seconds"]}
    refused = {ComputeOptions(**options): str(reason) for options, reason in facts["refused"]}
    plan = Measured(ComputeOptions(**facts["chosen"]), seconds, refused)
    return plan if plan.chosen in plan.seconds else None


_WITHOUT_BF16 = ("AVX2", "NO AVX")  # x86-64; emulated, it was 20 times as slow as fp32
_TRIED = 4  # images: where bf16 is emulated, more would take minutes
_TIMES = 3
_WORTH = 1.2  # times as fast: less does not pay for rounding
_AGREE = 0.99  # least cosine between an image's features in both precisions


def choose_inference(config: Config, data: TrainingData, plan: ComputePlan) -> ComputePlan:
    """A plan with the precision and threads in which a frozen backbone is fastest here.

    Measured on four images: beside other work one thread is often faster than two.
    """
    if config.plan == "default" or data.device.type != "cpu":
        return plan
    net = data.new_network(config)
    batch = next(iter(data.images.batches([data.dataset.ids(TRAIN)[:_TRIED]], None)))
    fp32, bf16 = (
        Classifier(net, data.normalization, precision, data.device)
        for precision in ("fp32", "bf16")
    )
    most = plan.threads.value
    counts = [most] if config.threads or most == 1 else [most, 1]
    seconds = {count: _seconds(fp32, batch.images, count) for count in counts}
    threads = min(counts, key=lambda count: seconds[count])
    if len(counts) > 1:
        rates = [f"{plural(n, 'thread')} {_TRIED / seconds[n]:,.0f} images/s" for n in counts]
        plan = replace(plan, threads=Choice(threads, joined(rates), _TRIED / seconds[threads]))
    if config.precision != "auto":
        return plan
    if torch.backends.cpu.get_cpu_capability() in _WITHOUT_BF16:
        return replace(plan, precision=Choice("fp32", "this processor would only emulate bf16"))
    exact, rounded = (compute_features(classifier, [batch]) for classifier in (fp32, bf16))
    cosine = float(F.cosine_similarity(exact, rounded).min())
    ratio = seconds[threads] / _seconds(bf16, batch.images, threads)
    figures = f"bf16 is {ratio:.2f} times as fast, and its features agree to {cosine:.4f}"
    chosen = "bf16" if ratio > _WORTH and cosine > _AGREE else "fp32"
    return replace(
        plan, precision=Choice(chosen, f"{figures} (least cosine of {_TRIED} images)", ratio)
    )


def _seconds(classifier: Classifier, images: Tensor, threads: int) -> float:
    """Seconds of a forward pass; the first is not counted, unless all are slow."""
    times = [measure_seconds(lambda: classifier(images), threads, classifier.device)]
    while len(times) <= _TIMES and sum(times) < 1.0:
        times.append(measure_seconds(lambda: classifier(images), threads, classifier.device))
    return min(times)
