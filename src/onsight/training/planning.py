"""How a run computes its steps: as asked, as kept from an earlier run, as measured, or plainly."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onsight.choice import Choice
from onsight.config import Config
from onsight.hardware.memory import is_out_of_memory
from onsight.report.console import Story
from onsight.training.keptplan import keep, plan_file, read_kept
from onsight.training.material import Material
from onsight.training.plan import Plan, choose_threads
from onsight.training.probe import Measured, Probe, Way
from onsight.training.race import NEGLIGIBLE
from onsight.training.ways import WAY, open_stages, plain_way

_WORTH_SECONDS = 10.0  # shorter runs are over before a better plan has paid for its measuring
_MOST_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.05, 1.5, 5.0  # of the run, for measuring


def choose_way(
    config: Config, material: Material, expected_seconds: float, folder: Path | None, story: Story
) -> Plan:
    """The plan's entries for precision, memory format, threads, compiling and parts of a batch.

    expected_seconds: of training; folder: where plans are kept. Takes a few seconds at most.
    """
    plain = plain_way(config, material.device, choose_threads(config.threads).value)
    stages = open_stages(config, material, expected_seconds)
    if config.plan == "default" or not stages:
        reason = "nothing is left open" if config.plan != "default" else "as asked"
        return plain_plan(config, plain, f"not measured: {reason}")
    if expected_seconds < _WORTH_SECONDS:
        return plain_plan(config, plain, "not measured: so short a run would not gain by it")
    # A budget is spent best by what is fastest now, whatever else the machine has to do today.
    may_keep = folder and material.module is None and not config.budget
    path = plan_file(folder, config, material) if folder and may_keep else None
    kept = read_kept(path) if path and config.plan == "auto" else None
    if kept:
        story.say(f"plan: kept from an earlier run ({path}; --plan fresh measures again)")
        return _measured_plan(config, Measured(**kept), "kept from an earlier run")
    most = min(_MOST_SECONDS, max(_LEAST_SECONDS, _MOST_SHARE * expected_seconds))
    begun = time.perf_counter()
    measured = _measure(config, material, expected_seconds, most)
    seconds = time.perf_counter() - begun
    story.say(f"plan: measured {len(measured.seconds)} ways to compute a step in {seconds:.1f} s")
    if path:
        try:
            keep(path, asdict(measured))
        except OSError as error:
            story.warn(f"the plan is not kept for the next run: {error}")
    return _measured_plan(config, measured, f"measured in {seconds:.1f} s")


def _measure(
    config: Config, material: Material, expected_seconds: float, most_seconds: float
) -> Measured:
    """Measure; where memory does not do for a batch, in twice as many parts."""
    while True:
        stages = open_stages(config, material, expected_seconds)
        try:
            return Probe(config, material).measure(stages, most_seconds)
        except RuntimeError as error:
            if not is_out_of_memory(error) or 2 * config.accumulate > config.batch_size:
                raise
        config = config.model_copy(update={"accumulate": 2 * config.accumulate})


def apply_way(config: Config, plan: Plan) -> Config:
    """The config with what the plan chose, and nothing left to measure."""
    chosen = {name: plan[name].value for name in WAY}
    return config.model_copy(update=chosen | {"plan": "default"})


def plain_plan(config: Config, way: Way, why: str) -> Plan:
    """The plan's entries for a way that is taken without measuring."""
    choices = {name: Choice(way[name], _asked(config, name) or why) for name in way}
    return choices | {"measured": Choice([], why)}


def _measured_plan(config: Config, found: Measured, why: str) -> Plan:
    rates = {name: config.batch_size / seconds for name, seconds in found.seconds.items()}
    plan: Plan = {name: _explain(config, name, found) for name in found.chosen}
    rows: list[dict[str, Any]] = [
        {**found.ways[name], "images_per_second": round(rate, 1)} for name, rate in rates.items()
    ]
    rows += [{**found.ways[name], "refused": reason} for name, reason in found.refused.items()]
    return plan | {"measured": Choice(rows, why)}


def _asked(config: Config, name: str) -> str:
    value = getattr(config, name)
    return "" if value in ("auto", 0) else "as asked"


def _explain(config: Config, name: str, found: Measured) -> Choice[Any]:
    """A choice with how much faster it is than the best way that differs in it."""
    value = found.chosen[name]
    if name == "accumulate":
        asked = value == config.accumulate
        return Choice(value, "as asked" if asked else "memory ran out with fewer parts")
    others = {
        way: seconds for way, seconds in found.seconds.items() if found.ways[way][name] != value
    }
    if not others:
        return Choice(value, _asked(config, name) or _why_alone(name, value, found))
    mine = next(s for way, s in found.seconds.items() if found.ways[way] == found.chosen)
    other = min(others, key=lambda way: others[way])
    rates = [config.batch_size / seconds for seconds in (mine, others[other])]
    versus = f"{rates[0]:,.0f} against {rates[1]:,.0f} images/s with {other}"
    if rates[0] > NEGLIGIBLE * rates[1]:
        return Choice(value, f"{rates[0] / rates[1]:.2f} times as fast: {versus}", rates[0])
    return Choice(value, f"simpler, and as fast within the noise: {versus}", rates[0])


def _why_alone(name: str, value: Any, found: Measured) -> str:
    """Why a choice was compared with no other."""
    for way, reason in found.refused.items():
        if found.ways[way][name] != value:
            return f"{way} was refused: {reason}"
    return (
        "compiling would not pay in so short a run" if name == "compile" else "no other was tried"
    )
