"""How a run was made: its choices, its machine, the images refused, its command."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.data.sources.source import is_memory_name
from onsight.report.filters import plain
from onsight.report.runfiles import Row, Said

_PROBLEM_ROWS = 200


@dataclass(frozen=True)
class PlanRow:
    """A choice with its reason, or a way to compute a step with its measured speed."""

    name: str
    value: Any
    reason: str | None


@dataclass(frozen=True)
class Refused:
    """The images that could not be used: how many, the reasons counted, and the first rows."""

    total: int
    reasons: list[tuple[tuple[str, str], int]]
    rows: list[Row]


def choices(plan: Mapping[str, Any] | None) -> list[PlanRow]:
    """What Onsight chose and why, then every way to compute a step that it timed."""
    known = dict(plan or {})
    switches = _objects(known.pop("switches", []))
    rows = {name: _choice(name, value) for name, value in known.items()}
    ways = _objects(rows["measured"].value) if "measured" in rows else []
    if ways:
        del rows["measured"]
    return [*rows.values(), *map(_way, ways), *map(_switch, switches)]


def _choice(name: str, value: Any) -> PlanRow:
    known = value if isinstance(value, dict) and "value" in value else {"value": value}
    return PlanRow(name, known["value"], known.get("reason"))


def _way(way: Row) -> PlanRow:
    """A way to compute a step in words, and its speed or why it was refused."""
    shown = ("precision", "threads", "memory_format")
    words = ", ".join(f"{name.replace('_', ' ')} {way[name]}" for name in shown if name in way)
    if way.get("cuda_graph") == "on":
        words += ", as a CUDA graph"
    if way.get("compile") == "on":
        words += ", compiled"
    if "refused" in way:
        return PlanRow("measured", words, f"refused: {way['refused']}")
    return PlanRow("measured", words, f"{plain(way.get('images_per_second'))} images/s")


def _switch(switch: Row) -> PlanRow:
    """What changed during training: from which epoch and step on, counted from 0, and why."""
    value = switch.get("value")
    facts = [f"{name} {fact}" for name, fact in value.items()] if isinstance(value, dict) else []
    return PlanRow("switch", ", ".join(facts), switch.get("reason"))


def placements(found: Any) -> list[Row]:
    """Where everything was after the first step, one entry per rank."""
    return [
        Said(entry | {name: _objects(entry[name]) for name in ("problems", "rows")})
        for entry in _objects(found)
    ]


def exports(proofs: Any) -> list[Row]:
    """What was exported, with its proof, a row per file; those of another shape are left out."""
    return [row for row in _objects(proofs) if row["file"] and _objects(row["speeds"])]


def _objects(value: Any) -> list[Row]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def machine(environment: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The machine and the versions, one fact per row."""
    return list(_flat(environment or {}))


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{above} › {key}" if above else str(key)
        if isinstance(item, dict):
            yield from _flat(item, name)
        else:
            yield name.replace("_", " "), plain(item)


def refused(rows: list[Row] | None) -> Refused | None:
    """The images that could not be used, and the reasons counted."""
    if rows is None:
        return None
    reasons = Counter((row["stage"] or "", row["reason"] or "") for row in rows)
    return Refused(len(rows), reasons.most_common(20), rows[:_PROBLEM_ROWS])


def command(run: Path, data: str | None) -> str | None:
    """The command that repeats the run; None if the data is not known or was in memory."""
    if data is None or is_memory_name(data):
        return None
    return shlex.join(["onsight", "train", str(data), "--config", str(run / "config.toml")])
