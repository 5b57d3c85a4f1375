"""How much faster are two ranks of one thread than one, and how much faster could they be?

    python benchmarks/ranks_scaling.py DATA [--pairs 5] [--batch-size 256]

Trains LeNet at the same batch size per rank, so that two ranks share a batch twice as large. It
measures in turn one rank, two ranks, and the limit of the machine: two runs of one rank at the same
time, which share nothing. images/s are those of the epochs after the first, from metrics.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from onsight.hardware.devices import processor_name


def start(data: str, out: Path, ranks: int, batch_size: int) -> subprocess.Popen[bytes]:
    words = [data, "--model", "lenet", "--image-size", "32", "--epochs", "3", "--threads", "1"]
    words += ["--ranks", str(ranks), "--batch-size", str(ranks * batch_size), "--out", str(out)]
    command = [sys.executable, "-m", "onsight", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def images_per_second(process: subprocess.Popen[bytes], out: Path) -> float:
    if process.wait() != 0:
        raise SystemExit(f"the run in {out} failed")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return float(statistics.mean(row["images_per_second"] for row in rows[1:]))


def measure(data: str, folder: Path, batch_size: int) -> tuple[float, float, float]:
    """images/s of one rank, of two ranks, and of two runs side by side."""
    places = [folder / name for name in ("one", "two", "left", "right")]
    one = images_per_second(start(data, places[0], 1, batch_size), places[0])
    two = images_per_second(start(data, places[1], 2, batch_size), places[1])
    separate = [start(data, place, 1, batch_size) for place in places[2:]]
    rates = sum(map(images_per_second, separate, places[2:]))
    return one, two, rates


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args(arguments)
    ratios, limits = [], []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            one, two, separate = measure(options.data, Path(folder), options.batch_size)
        ratios.append(two / one)
        limits.append(separate / one)
        rates = f"one rank {one:,.0f}, two ranks {two:,.0f}, two separate runs {separate:,.0f}"
        print(f"{rates} images/s")
    facts = {
        "processor": processor_name(),
        "torch": torch.__version__,
        "batch_size_per_rank": options.batch_size,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "limit": statistics.median(limits),
        "limits": limits,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
