"""Explains a run without training steps, which fitted a head, by what its files say."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding

from onsight.config_files import read_config_file
from onsight.data.sources.source import is_memory_name
from onsight.errors import OutputError
from onsight.evaluation.results import MemberResult
from onsight.report.run_files import LenientDict, read_json, read_results
from onsight.text import duration

_MEASURED = ("precision", "threads")  # what such a run chooses by timing


@dataclass(frozen=True)
class HeadRun:
    """A finished run whose model is a head on the features of a frozen network."""

    run: Path
    results: LenientDict
    plan: Mapping[str, Any]  # choices with their reasons, by config field

    @property
    def members(self) -> list[MemberResult]:
        """The networks of the run, those with the largest weight first; empty for a single one."""
        members: list[MemberResult] = self.results["members"] or []
        return sorted(members, key=lambda row: -row["weight"])

    @property
    def images_per_second(self) -> float:
        """How fast features were computed; 0 if it is unknown."""
        if not self.results["images_per_second"] and self.members:
            return 1000 / max(1e-9, self.members[0]["ms_per_image"])
        return float(self.results["images_per_second"] or 0.0)

    @property
    def verdict(self) -> str:
        """What the run did instead of training."""
        trained = len(self.members) > 1
        start = (
            "The model of this run is a head alone" if trained else "This run only fitted a head"
        )
        model = self.members[0]["model"] if self.members else self.results["model"]
        rate = f", at {self.images_per_second:,.0f} images/s," if self.images_per_second else ""
        return (
            f"{start}: it computed features of {self.results['used']:,} images with {model}{rate} "
            "and has no training steps to explain."
        )

    @property
    def advice(self) -> str:
        """The command that explains the training of a network."""
        unused = [row for row in self.members if not row["weight"]]
        for row in sorted(unused, key=lambda row: -row["seconds"]):
            folder = self.run / "members" / row["name"]
            if folder in self.run.glob("members/*") and has_training_steps(folder):
                run, config = shlex.quote(str(self.run)), shlex.quote(str(folder / "config.toml"))
                return (
                    f"{row['name']} was trained for {duration(row['seconds'])}, but is not in the "
                    f"model: `onsight explain {run} --config {config}` explains its training."
                )
        data = self.results["data"]
        data = shlex.quote(data) if data and not is_memory_name(data) else "DATA"
        return f"`onsight explain {data} --model sprint` explains the training of a network."


def has_training_steps(folder: Path) -> bool:
    """Return whether a network was trained in steps: not if only a head was fitted on features."""
    path = folder / "config.toml"
    if not path.is_file() or not read_config_file(path).get("freeze"):
        return path.is_file()
    plan = read_json(folder / "plan.json")
    return isinstance(plan, dict) and "epochs" in plan


def read_head_run(run: Path, folder: Path) -> HeadRun:
    """Read a run; folder: where the settings of its head are. Raises OutputError."""
    results, plan = read_results(run), read_json(folder / "plan.json")
    if results["used"] is None:
        raise unfinished(run)
    return HeadRun(run, results, plan if isinstance(plan, dict) else LenientDict())


def unfinished(run: Path) -> OutputError:
    """Return the error for a run that does not say which networks are in its model."""
    return OutputError(
        f"{run} is not a finished run: no results.json says which of its networks are in its "
        "model. Finish it with --resume, or name the settings of one: "
        f"--config {shlex.quote(str(run / 'members' / 'NAME' / 'config.toml'))}"
    )


def head_facts(head: HeadRun) -> dict[str, Any]:
    """Return plain values; the phases are those of the whole run, in seconds."""
    return {
        "verdict": head.verdict,
        "cause": "head",
        "advice": head.advice,
        "images_per_second": head.images_per_second,
        "phases": head.results["phases"] or {},
        "what_ifs": [],
        "best": None,
        "best_ratio": 1.0,
        "device": head.results["device"],
        "model": head.results["model"],
    }


def print_head(head: HeadRun, console: Console) -> None:
    """Print what the run did, what it chose by timing, and what to run."""
    console.print(Padding(head.verdict, (0, 0, 1, 0)), style="bold")
    for name in _MEASURED:
        choice = head.plan.get(name)
        if isinstance(choice, dict):
            console.print(f"{name}: {choice.get('value')} ({choice.get('reason')})")
    console.print(head.advice)
