"""What the benchmarks share: interleaved rounds, paired ratios, and the page of results.

Shared machines drift, so every benchmark runs its contenders A B C A B C ... on one machine in one
session. It reports ratios of neighbouring runs, never times alone.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from onsight.files import write_atomically
from onsight.hardware.devices import processor_name
from onsight_explain.threads import usable_cores

Facts = dict[str, Any]  # from JSON

RESULTS = Path(__file__).parent / "RESULTS.md"
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}  # where the package has another name
HEAD = (
    "# Results\n\nMost sections are written by the scripts in this folder. The docstring of each "
    "states\nits question and its command.\n"
)


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, with their range and number."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}, {self.pairs} pairs)"


def paired(ours: list[float], theirs: list[float]) -> Ratio:
    """Our rates divided by theirs, round by round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def interleave(
    contenders: Mapping[str, Callable[[], float]], rounds: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """Each contender's rate in every round; the order rotates, so that none is always first."""
    names = list(contenders)
    if warm_up and rounds > 1:  # a single round is a trial
        for name in names:
            contenders[name]()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            rates[name].append(contenders[name]())
            print(f"  round {number + 1}/{rounds} {name}: {rates[name][-1]:,.1f}", file=sys.stderr)
    return rates


def run_json(*command: str | Path, env: dict[str, str] | None = None) -> Facts:
    """Run a command; returns the JSON in its last line, with its process_seconds."""
    begun = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, text=True, env=env, check=False
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed with code {done.returncode}")
    facts: Facts = json.loads(done.stdout.strip().splitlines()[-1])
    return facts | {"process_seconds": seconds}


def circumstances(*packages: str) -> str:
    """The machine, and the versions of the installed packages, for a table's caption."""
    names = [
        name for name in ("torch", "torchvision", *packages) if find_spec(MODULES.get(name, name))
    ]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    machine = f"{processor_name()}, {usable_cores()} cores"
    if torch.cuda.is_available():
        machine += f", {torch.cuda.get_device_name()}"
    return f"{machine}; Python {platform.python_version()}, {versions}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = [" | ".join(header), " | ".join("---" for _ in header), *map(" | ".join, rows)]
    return [f"| {line} |" for line in lines]


def write_section(name: str, lines: list[str]) -> None:
    """Put a benchmark's section into RESULTS.md, replacing its previous one."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else HEAD
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = "\n".join([begin, *lines, end])
    before, found, rest = text.partition(begin)
    after = rest.partition(end)[2] if found else ""
    text = f"{before.rstrip()}\n\n{section}\n\n{after.lstrip()}" if found else f"{text}\n{section}"
    write_atomically(RESULTS, f"{text.rstrip()}\n".encode())
    print("\n".join(lines))
