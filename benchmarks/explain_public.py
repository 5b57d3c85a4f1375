"""What does `onsight explain` say of ten public training scripts, and is the fixed one faster?

    python benchmarks/explain_public.py ROOT [--only NAME ...] [--prepare] [--fashion FOLDER]

public_scripts.py lists the repositories, commits, arguments and every change. ROOT/NAME is a
checkout of each. ROOT/data is made by public_data.py from three Debian packages:
dataset-fashion-mnist, plasma-workspace-wallpapers and openclipart-png. Hugging Face's metric comes
from ROOT/evaluate (huggingface/evaluate at a7dd338). Beside Onsight, the scripts need the packages
transformers, datasets, evaluate, accelerate, lightning and jsonargparse[signatures]. The fastai
script is older than fastcore 2.2, whose star import hides its Param. It needs fastai 2.7.19,
fastcore 1.7.29 and fastprogress 1.0.3, installed without their dependencies.

Each script is explained with --write, which runs the fixed text against it. Before that, a person
with a profiler found out what really holds the script back. public_judgements.csv has that finding,
and the person's judgement of the verdict. With --prepare, the data is made and nothing is run. With
--only, the table is printed and RESULTS.md does not change.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Facts, circumstances, table, write_section
from image_files import FASHION
from public_scripts import SCRIPTS, environment, prepare

JUDGEMENTS = Path(__file__).parent / "public_judgements.csv"
HEADER = [
    "script",
    "images/s",
    "cause",
    "verdict",
    "bottleneck, according to the reader",
    "reader agrees",
    "best what-ifs",
    "times as fast (interval)",
    "fixed / original (interval)",
    "seconds",
]
PACKAGES = ("timm", "transformers", "accelerate", "lightning", "fastai")


@dataclass(frozen=True)
class Outcome:
    """explain's answer for a script: its facts, or the problem if there are none."""

    name: str
    facts: Facts | None
    problem: str
    seconds: float

    def cells(self, judgement: dict[str, str]) -> list[str]:
        reader = [judgement.get("holds_back", ""), agreement(judgement)]
        if not self.facts:
            return [self.name, "", "", self.problem, *reader, "", "", "", f"{self.seconds:.0f}"]
        best, fixed = self.facts["best"], self.facts.get("fixed_script")
        cells = [
            self.name,
            f"{self.facts['images_per_second']:,.0f}",
            self.facts["cause"],
            self.facts["verdict"],
            *reader,
            " + ".join(best["names"]) if best else "none",
            ratio(best and (best.get("interval") or best)),
            (fixed.get("problem") or ratio(fixed.get("ratio"))) if fixed else "",
            f"{self.seconds:.0f}",
        ]
        return [cell.replace("|", "/").replace("\n", " ") for cell in cells]


def ratio(found: Facts | None) -> str:
    """A ratio with its interval, where there is one."""
    if not found:
        return ""
    known = found.get("low") is not None
    ends = f" ({found['low']:.2f} to {found['high']:.2f})" if known else ""
    return f"{found['ratio']:.2f}{ends}"


def agreement(judgement: dict[str, str]) -> str:
    """yes or no, and why; empty if nobody has judged it yet."""
    return ": ".join(filter(None, (judgement.get("agrees", ""), judgement.get("why", ""))))


def explain(name: str, root: Path, fashion: Path) -> Outcome:
    """Run the command as a user would, in the script's folder."""
    print(f"  {name}", file=sys.stderr)
    script = prepare(name, root, fashion)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onsight", "explain", script.name, "--json", "--write"]
        done = subprocess.run(
            [*command, str(Path(folder) / "fixed.py"), "--", *SCRIPTS[name].split_arguments(root)],
            cwd=script.parent,
            env=environment(root),
            capture_output=True,
            text=True,
            check=False,
        )
    seconds = time.perf_counter() - begun
    lines = done.stdout.strip().splitlines()
    if lines and lines[-1].startswith("{"):
        return Outcome(name, json.loads(lines[-1]), "", seconds)
    errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    print(done.stderr, file=sys.stderr)
    return Outcome(name, None, f"failed: {errors[-1]}", seconds)


def read_judgements() -> dict[str, dict[str, str]]:
    """The reader's findings by script: bottleneck, figures, agreement and reason."""
    with JUDGEMENTS.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def summary(outcomes: list[Outcome], judged: dict[str, dict[str, str]]) -> str:
    agreed = sum(judged[found.name]["agrees"] == "yes" for found in outcomes)
    answered = sum(found.facts is not None for found in outcomes)
    return (
        f"{answered} of {len(outcomes)} scripts were explained; the reader agrees with {agreed} "
        "verdicts."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, metavar="NAME")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--fashion", type=Path, default=FASHION)
    options = parser.parse_args(arguments)
    root, names = options.root.resolve(), options.only or list(SCRIPTS)
    if options.prepare:
        for name in names:
            print(prepare(name, root, options.fashion))
        return
    judged = read_judgements()
    outcomes = [explain(name, root, options.fashion) for name in names]
    changes = [
        f"- {name}: {change.path}: {change.why}"
        for name in names
        for change in SCRIPTS[name].changes
    ]
    lines = [
        "## Public scripts",
        "",
        "Run unchanged except for data paths, arguments and the changes below; "
        f"{circumstances(*PACKAGES)}.",
        "",
        *table(HEADER, [found.cells(judged[found.name]) for found in outcomes]),
        "",
        summary(outcomes, judged),
        "",
        *changes,
    ]
    if options.only:
        print("\n".join(lines))
    else:
        write_section("explain_public", lines)


if __name__ == "__main__":
    main()
