"""Does `onsight explain SCRIPT.py` find the fault, and is its best what-if as fast as the fix?

    python benchmarks/explain_planted.py [--only NAME ...] [--rounds 3] [--fashion FOLDER]

benchmarks/planted has twelve small training scripts, each with one common fault and a diff that
fixes it by hand. `explain` runs both versions in turn: the faulty one with its what-ifs, the fixed
one only for its speed. "Right" means that it names the planted cause in every round. "Reached"
means that the best what-if it tried has at least 0.9 of the fixed script's speed. With --only, the
table is printed and RESULTS.md does not change.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import Facts, circumstances, run_json, table, write_section
from image_files import FASHION
from planted.pictures import make

from onsight.text import plural

SCRIPTS = Path(__file__).parent / "planted"
ENOUGH = 0.9
MAX_SECONDS = 60
HEADER = [
    "fault",
    "cause named",
    "verdict",
    "as written, images/s",
    "best what-if",
    "images/s",
    "what-if / as written",
    "fixed, images/s",
    "what-if / fixed",
    "seconds to explain, at most",
]


@dataclass(frozen=True)
class Fault:
    """The cause planted in a script, and the layout of the images that it reads."""

    cause: str
    data: str
    needs_gpu: bool = False


FAULTS = {
    "loader_bound": Fault("loader", "photos"),
    "oversubscribed": Fault("oversubscribed", "small"),
    "tiny_batch": Fault("small-batch", "small"),
    "sync_in_loop": Fault("sync", "small"),
    "slow_transform": Fault("slow-transform", "scans"),
    "cpu_augmentation": Fault("augmentation", "thumbnails"),
    "fp32_bound": Fault("precision", "large"),
    "eval_with_grad": Fault("no-grad", "small"),
    "pageable_copies": Fault("pageable-copy", "large", needs_gpu=True),
    "disk_bound": Fault("disk", "raw"),
    "bad_spin": Fault("threads", "small"),
    "bad_binding": Fault("threads", "small"),
}


@dataclass(frozen=True)
class Outcome:
    """What explain found for a script and for its fixed version, in each round."""

    name: str
    written: list[Facts]
    fixed: list[Facts]

    @property
    def is_right(self) -> bool:
        return {answer["cause"] for answer in self.written} == {FAULTS[self.name].cause}

    @property
    def share(self) -> float:
        """The speed of the best what-if relative to the fixed script: the median of the rounds."""
        pairs = zip(self.written, self.fixed, strict=True)
        shares = [best_speed(faulty) / fixed["images_per_second"] for faulty, fixed in pairs]
        return float(statistics.median(shares))

    @property
    def seconds(self) -> float:
        """The time of the slowest explanation, from process start to end."""
        return float(max(answer["wall_seconds"] for answer in self.written))

    def cells(self) -> list[str]:
        causes = ", ".join(sorted({answer["cause"] for answer in self.written}))
        last = self.written[-1]
        names = (last["best"] or {}).get("names") or []
        speeds = statistics.median(answer["images_per_second"] for answer in self.written)
        best = statistics.median(map(best_speed, self.written))
        ratio = statistics.median(answer["best_ratio"] or 1.0 for answer in self.written)
        fixed = statistics.median(answer["images_per_second"] for answer in self.fixed)
        return [
            self.name,
            f"{causes} ({'right' if self.is_right else 'wrong'})",
            last["verdict"].replace("|", "/"),
            f"{speeds:,.0f}",
            " + ".join(names) or "none",
            f"{best:,.0f}",
            f"{ratio:.2f}",
            f"{fixed:,.0f}",
            f"{self.share:.2f}",
            f"{self.seconds:.0f}",
        ]


def best_speed(answer: Facts) -> float:
    """The best what-if's speed, or the script's own if none was faster."""
    return float((answer["best"] or answer)["images_per_second"])


def explain(script: Path, data: Path, *flags: str) -> Facts:
    print(f"  {script.stem}", file=sys.stderr)
    begun = time.monotonic()
    answer = run_json(
        sys.executable, "-m", "onsight", "explain", script, "--json", *flags, "--", data
    )
    return answer | {"wall_seconds": time.monotonic() - begun}


def fix(name: str, folder: Path) -> Path:
    """Copy a script into the folder and apply the diff that fixes it."""
    script = Path(shutil.copy(SCRIPTS / f"{name}.py", folder))
    subprocess.run(["git", "apply", SCRIPTS / f"{name}.diff"], cwd=folder, check=True)
    return script


def measure(name: str, data: Path, rounds: int, seconds: float) -> Outcome:
    written, fixed = [], []
    limit = "--seconds", f"{seconds:g}"
    with tempfile.TemporaryDirectory() as folder:
        fixed_script = fix(name, Path(folder))
        for _ in range(rounds):
            written.append(explain(SCRIPTS / f"{name}.py", data, *limit))
            fixed.append(explain(fixed_script, data, "--no-what-ifs", *limit))
    return Outcome(name, written, fixed)


def can_run(name: str) -> bool:
    return torch.cuda.is_available() or not FAULTS[name].needs_gpu


def make_rows(names: list[str], outcomes: dict[str, Outcome]) -> Iterator[list[str]]:
    for name in names:
        if name in outcomes:
            yield outcomes[name].cells()
        else:
            yield [name, "needs a GPU", *[""] * (len(HEADER) - 2)]


def summary(names: list[str], outcomes: dict[str, Outcome]) -> str:
    right = sum(found.is_right for found in outcomes.values())
    reached = sum(found.share >= ENOUGH for found in outcomes.values())
    quick = sum(found.seconds <= MAX_SECONDS for found in outcomes.values())
    skipped = len(names) - len(outcomes)
    rest = f" {skipped} could not run without a GPU." if skipped else ""
    return (
        f"The cause is right for {right} of {len(names)} scripts. The best what-if reaches at "
        f"least {ENOUGH} of the fixed script's speed for {reached} of {len(names)}. {quick} were "
        f"explained in at most {MAX_SECONDS} s.{rest}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each explanation")
    parser.add_argument("--fashion", type=Path, default=FASHION)
    options = parser.parse_args(arguments)
    names = options.only or list(FAULTS)
    runnable = [name for name in names if can_run(name)]
    layouts = sorted({FAULTS[name].data for name in runnable})
    place = Path(tempfile.gettempdir()) / "onsight-planted"
    folders = make(options.fashion, place, layouts)
    outcomes = {
        name: measure(name, folders[FAULTS[name].data], options.rounds, options.seconds)
        for name in runnable
    }
    lines = [
        "## Planted faults",
        "",
        "Small PyTorch training scripts with one planted fault each, explained as they are and "
        f"fixed by hand; medians of {plural(options.rounds, 'round')}; "
        f"{circumstances('numpy', 'pillow')}.",
        "",
        *table(HEADER, list(make_rows(names, outcomes))),
        "",
        summary(names, outcomes),
    ]
    if options.only:
        print("\n".join(lines))
    else:
        write_section("explain_planted", lines)


if __name__ == "__main__":
    main()
