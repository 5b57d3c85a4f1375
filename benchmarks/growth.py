"""How do opening, splitting and shuffling scale from a thousand pictures to a million?

    python benchmarks/growth.py [--full] [--rounds 5] [--most 1000000]

Packs of one-pixel pictures, so that the table is what counts, each opened in fresh processes:
open the pack, split it, draw an epoch's order; --full goes up to four million. Memory is the peak
of the process beyond what it held with torch and Onsight imported; the total is given too. Pictures
per class and the length of their paths are those of ImageNet.
The targets: a million pictures open within a second in less than 300 MB, and costs grow linearly.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from harness import circumstances, run_json, table, write_section

from onsight.data.fit import PictureFormat
from onsight.data.index import Index, Row
from onsight.data.pack import open_pack, pack_key
from onsight.data.packing import Job
from onsight.data.sources.source import Source
from onsight.hardware.cores import usable_cores

ONE_PIXEL = PictureFormat(1, 1, 1)
CLASSES = 1000
LEAST = 1000
STAGES = ("open", "split", "order")
MILLION = 1_000_000
MOST_SECONDS, MOST_BYTES = 1.0, 300e6


def make_source(count: int) -> Source:
    """A source of this many one-pixel pictures, named as in a data set on disk."""

    def read(row: int) -> np.ndarray:
        return np.full((1, 1, 1), row % 251, np.uint8)

    return Source("made", Path("/made"), make_index(count), read, str(count), "made")


def make_index(count: int) -> Index:
    return Index.of(
        [
            Row(
                f"class-{number % CLASSES:04d}/some/folder/picture-{number:07d}.jpg",
                f"c{number % CLASSES}",
            )
            for number in range(count)
        ]
    )


def build(count: int, cache: Path) -> None:
    """Make a pack, in a process of its own: a child inherits its parent's peak memory."""
    source = make_source(count)
    begun = time.perf_counter()
    open_pack(Job(source, ONE_PIXEL, threads=usable_cores()), cache)
    seconds = time.perf_counter() - begun
    (place,) = (cache / "packs").iterdir()
    print(json.dumps({"place": str(place), "key": pack_key(source, ONE_PIXEL), "build": seconds}))


def held_bytes() -> int:
    """The most memory that this process has held since it was started.

    ru_maxrss is only the fallback: it starts from what the parent held.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    from onsight.hardware.usage import peak_memory_bytes

    return peak_memory_bytes()


def measure_open(place: Path, key: str) -> None:
    """Open a pack as a run does, and print what each stage took."""
    import torch

    from onsight.data.index import TRAIN
    from onsight.data.loader import Loader, Pictures
    from onsight.data.pack import _read
    from onsight.data.split import assign, leaks

    before = held_bytes()
    stamps = [time.perf_counter()]
    pack = _read(place, key, Job(make_source(1), ONE_PIXEL, threads=usable_cores()))
    assert pack is not None
    names = [pack.index.locators[row] for row in (0, len(pack) // 2, len(pack) - 1)]
    opened = held_bytes()
    stamps.append(time.perf_counter())
    splits = assign(pack.digests, pack.index.splits, 0.1, 0.1)
    splits[leaks(pack.digests, splits)] = 0
    train = torch.from_numpy(np.flatnonzero(splits == TRAIN))
    stamps.append(time.perf_counter())
    loader = Loader(Pictures.of(pack), train, 128, torch.device("cpu"))
    batch = next(loader.epoch(0, 0))
    stamps.append(time.perf_counter())
    assert len(names) == 3
    assert len(batch.ids)
    seconds = {
        name: end - begin for name, (begin, end) in zip(STAGES, pairwise(stamps), strict=True)
    }
    memory = {"open_bytes": opened - before, "bytes": held_bytes() - before, "total": held_bytes()}
    print(json.dumps({**seconds, **memory}))


def measure(count: int, rounds: int) -> dict[str, float]:
    """The medians of several processes that open the same pack."""
    with tempfile.TemporaryDirectory() as cache:
        made = run_json(sys.executable, __file__, "--build", cache, "--most", str(count))
        opened = [
            run_json(sys.executable, __file__, "--open", made["place"], "--key", made["key"])
            for _ in range(rounds)
        ]
    found = {name: statistics.median(row[name] for row in opened) for name in opened[0]}
    print(f"  {count:,} pictures: {found}", file=sys.stderr)
    return {"count": count, "build": made["build"], **found}


def baseline(rounds: int) -> float:
    """The bytes that a process holds after importing torch alone."""
    program = (
        "import torch; print(next(line.split()[1] for line in open('/proc/self/status') "
        "if line.startswith('VmHWM')))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
        for _ in range(rounds)
    ]
    return statistics.median(int(done.stdout) * 1024 for done in runs)


def cost_rows(found: list[dict[str, float]]) -> list[list[str]]:
    return [
        [
            f"{row['count']:,}",
            *(f"{1000 * row[stage]:,.1f}" for stage in STAGES),
            f"{row['build']:,.1f}",
            *(f"{row[name] / 1e6:,.0f}" for name in ("open_bytes", "bytes", "total")),
        ]
        for row in found
    ]


def ratio_rows(found: list[dict[str, float]]) -> list[list[str]]:
    """How many times as much each entry costs as in a set of a tenth of the size."""
    rows = []
    for less, more in pairwise(found):
        share = less["count"] / more["count"]
        ratios = (f"{more[stage] / less[stage] * share:.2f}" for stage in (*STAGES, "build"))
        rows.append([f"{less['count']:,} to {more['count']:,}", *ratios])
    return rows


def verdict(found: list[dict[str, float]]) -> list[str]:
    """Whether a million pictures meet the targets."""
    lines = []
    for row in found:
        if row["count"] == MILLION:
            met = row["open"] < MOST_SECONDS and row["bytes"] < MOST_BYTES
            lines.append(
                f"A million opens in {row['open']:.3f} s and takes {row['bytes'] / 1e6:.0f} MB "
                f"with its split and its order; targets: under {MOST_SECONDS:g} s and "
                f"{MOST_BYTES / 1e6:.0f} MB. {'Met' if met else 'NOT MET'}."
            )
    return lines


def show(found: list[dict[str, float]], bare: float) -> None:
    header = ["pictures", "open ms", "split ms", "order ms", "first build s"]
    header += ["MB after opening", "MB after all", "MB of the process"]
    lines = [
        "## Growth from a thousand pictures to millions",
        "",
        f"{circumstances('numpy')}. A process with torch alone holds {bare / 1e6:.0f} MB.",
        "",
        *table(header, cost_rows(found)),
        "",
        "The cost per entry, as a multiple of that in the smaller set; below 1 if a fixed cost is "
        "spread over more entries:",
        "",
        *table(["from, to", *STAGES, "first build"], ratio_rows(found)),
        "",
        *verdict(found),
    ]
    write_section("growth", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--most", type=int, default=MILLION, help="pictures of the largest set")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        return build(options.most, options.build)
    if options.open:
        return measure_open(options.open, options.key)
    most = 4 * MILLION if options.full else options.most
    counts = [LEAST * 10**power for power in range(8) if LEAST * 10**power < most]
    return show([measure(count, options.rounds) for count in [*counts, most]], baseline(3))


if __name__ == "__main__":
    main()
