"""How a run computes its steps: as asked, as kept from an earlier run, as measured, or plainly."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onsight.choice import Choice
from onsight.config import Config
from onsight.hardware.memory import is_out_of_memory
from onsight.report.console import Reporter
from onsight.training.autotune.compute_options import COMPUTE_FIELDS, default_options, open_stages
from onsight.training.autotune.pick_fastest import NEGLIGIBLE
from onsight.training.autotune.plan_cache import keep_plan, plan_file, read_plan
from onsight.training.autotune.probe import ComputeOptions, Measured, Probe
from onsight.training.plan import Plan, choose_threads
from onsight.training.prepare import PreparedRun

_WORTH_SECONDS = 10.0  # shorter runs are over before a better plan has paid for its measuring
_MOST_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.05, 1.5, 5.0  # of the run, for measuring


def choose_compute(
    config: Config,
    prepared: PreparedRun,
    expected_seconds: float,
    folder: Path | None,
    reporter: Reporter,
) -> Plan:
    """The plan's entries for precision, memory format, threads, compiling and parts of a batch.

    expected_seconds: of training; folder: where plans are kept. Takes a few seconds at most.
    """
    plain = default_options(config, prepared.device, choose_threads(config.threads).value)
    stages = open_stages(config, prepared, expected_seconds)
    if config.plan == "default" or not stages:
        reason = "nothing is left open" if config.plan != "default" else "as asked"
        return unmeasured_plan(config, plain, f"not measured: {reason}")
    if expected_seconds < _WORTH_SECONDS:
        return unmeasured_plan(config, plain, "not measured: so short a run would not gain by it")
    # A budget is spent best by what is fastest now, whatever else the machine has to do today.
    may_keep = folder and prepared.module is None and not config.budget
    path = plan_file(folder, config, prepared) if folder and may_keep else None
    kept = read_plan(path) if path and config.plan == "auto" else None
    if kept:
        reporter.say(f"plan: kept from an earlier run ({path}; --plan fresh measures again)")
        return _measured_plan(config, Measured(**kept), "kept from an earlier run")
    most = min(_MOST_SECONDS, max(_LEAST_SECONDS, _MOST_SHARE * expected_seconds))
    begun = time.perf_counter()
    measured = _measure(config, prepared, expected_seconds, most)
    seconds = time.perf_counter() - begun
    reporter.say(
        f"plan: measured {len(measured.seconds)} options to compute a step in {seconds:.1f} s"
    )
    if path:
        try:
            keep_plan(path, asdict(measured))
        except OSError as error:
            reporter.warn(f"the plan is not kept for the next run: {error}")
    return _measured_plan(config, measured, f"measured in {seconds:.1f} s")


def _measure(
    config: Config, prepared: PreparedRun, expected_seconds: float, most_seconds: float
) -> Measured:
    """Measure; where memory does not do for a batch, in twice as many parts."""
    while True:
        stages = open_stages(config, prepared, expected_seconds)
        try:
            return Probe(config, prepared).measure(stages, most_seconds)
        except RuntimeError as error:
            if not is_out_of_memory(error) or 2 * config.accumulate > config.batch_size:
                raise
        config = config.model_copy(update={"accumulate": 2 * config.accumulate})


def apply_compute(config: Config, plan: Plan) -> Config:
    """The config with what the plan chose, and nothing left to measure."""
    chosen = {name: plan[name].value for name in COMPUTE_FIELDS}
    return config.model_copy(update=chosen | {"plan": "default"})


def unmeasured_plan(config: Config, way: ComputeOptions, why: str) -> Plan:
    """The plan's entries for options that are taken without measuring."""
    choices = {name: Choice(way[name], _asked(config, name) or why) for name in way}
    return choices | {"measured": Choice([], why)}


def _measured_plan(config: Config, found: Measured, why: str) -> Plan:
    rates = {name: config.batch_size / seconds for name, seconds in found.seconds.items()}
    plan: Plan = {name: _explain(config, name, found) for name in found.chosen}
    rows: list[dict[str, Any]] = [
        {**found.options[name], "images_per_second": round(rate, 1)} for name, rate in rates.items()
    ]
    rows += [{**found.options[name], "refused": reason} for name, reason in found.refused.items()]
    return plan | {"measured": Choice(rows, why)}


def _asked(config: Config, name: str) -> str:
    value = getattr(config, name)
    return "" if value in ("auto", 0) else "as asked"


def _explain(config: Config, name: str, found: Measured) -> Choice[Any]:
    """A choice with how much faster it is than the best options that differ in it."""
    value = found.chosen[name]
    if name == "accumulate":
        asked = value == config.accumulate
        return Choice(value, "as asked" if asked else "memory ran out with fewer parts")
    others = {
        way: seconds for way, seconds in found.seconds.items() if found.options[way][name] != value
    }
    if not others:
        return Choice(value, _asked(config, name) or _why_alone(name, value, found))
    mine = next(s for way, s in found.seconds.items() if found.options[way] == found.chosen)
    other = min(others, key=lambda way: others[way])
    rates = [config.batch_size / seconds for seconds in (mine, others[other])]
    versus = f"{rates[0]:,.0f} against {rates[1]:,.0f} images/s with {other}"
    if rates[0] > NEGLIGIBLE * rates[1]:
        return Choice(value, f"{rates[0] / rates[1]:.2f} times as fast: {versus}", rates[0])
    return Choice(value, f"simpler, and as fast within the noise: {versus}", rates[0])


def _why_alone(name: str, value: Any, found: Measured) -> str:
    """Why a choice was compared with no other."""
    for way, reason in found.refused.items():
        if found.options[way][name] != value:
            return f"{way} was refused: {reason}"
    return (
        "compiling would not pay in so short a run" if name == "compile" else "no other was tried"
    )
