"""What does an index of millions of pictures in shards cost?

    python benchmarks/shard_entries.py [--counts 100000 1000000 3000000] [--headers]

Local shards of tiny JPEGs, no two alike, in 1,000 classes. A process of its own for each stage:
read the shards, open what was kept of that, decode all into a pack; then open everything as a run
does, split it, and draw an epoch's order by shards. Seconds are of the wall and of the processor
(on a shared machine only the latter mean something); memory is the peak beyond what the process
held with torch and Onsight imported. --headers: what reading headers without tarfile gains, with
and without in turns.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import circumstances, run_json, table, write_section

SHARD_PICTURES, CLASSES = 10_000, 1000
COLUMNS = {  # of the table: what to show, of which process
    "first index": ("first", "index"),
    "kept index": ("open", "index"),
    "decode": ("build", "pack"),
    "open pack": ("open", "pack"),
    "split": ("open", "split"),
    "order": ("open", "order"),
}
MEMORY = {"MB, first index": ("first", "index"), "MB, all opened": ("open", "order")}


def tar_member(name: bytes, content: bytes) -> bytes:
    header = bytearray(512)
    header[: len(name)] = name
    header[100:156] = (
        b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % len(content) + b"0" * 11 + (b"\0" + b" " * 8)
    )
    header[156:157], header[257:265] = b"0", b"ustar\x0000"
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + content + bytes(-len(content) % 512)


def make_shards(folder: Path, count: int) -> None:
    from simplejpeg import encode_jpeg

    for shard in range(count // SHARD_PICTURES):
        pixels = np.random.default_rng(shard).integers(0, 256, (SHARD_PICTURES, 8, 8, 1), np.uint8)
        with open(folder / f"part-{shard:06d}.tar", "wb") as file:
            for number, one in enumerate(pixels, shard * SHARD_PICTURES):
                content = encode_jpeg(one, quality=95, colorspace="GRAY")
                file.write(tar_member(b"%09d.jpg" % number, content))
                file.write(tar_member(b"%09d.cls" % number, b"c%d" % (number % CLASSES)))
            file.write(bytes(1024))


def held_bytes() -> int:
    """The most memory that this process has held since it was started."""
    status = Path("/proc/self/status").read_text()  # ru_maxrss starts from what the parent held
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


class Stages:
    """What each stage has taken since the one before."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self._held, self._begun = held_bytes(), self._now()

    def end(self, name: str) -> None:
        now = self._now()
        wall, processor = (end - begin for begin, end in zip(self._begun, now, strict=True))
        memory = held_bytes() - self._held
        self.found[name] = {"wall": wall, "processor": processor, "bytes": memory}
        self._begun = self._now()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def run_stages(until: str, folder: str, cache: Path) -> None:
    """Print what the stages took until one."""
    import torch

    from onsight.data.fit import PictureFormat
    from onsight.data.index import TRAIN
    from onsight.data.loader import Loader
    from onsight.data.pack import open_pack
    from onsight.data.packing import Job
    from onsight.data.sources.find import find_source
    from onsight.data.split import assign, leaks
    from onsight.data.stream import Stream

    stages = Stages()
    source = find_source(folder, cache_folder=cache)
    stages.end("index")
    if until != "index":
        one_pixel = PictureFormat(1, 1, 1)
        pack = open_pack(Job(source, one_pixel, threads=2), cache)
        stages.end("pack")
        splits = assign(pack.digests, pack.index.splits, 0.1, 0.1)
        splits[leaks(pack.digests, splits)] = 0
        train = np.flatnonzero(splits == TRAIN)
        train = train[np.argsort(pack.sources[train], kind="stable")]
        stages.end("split")
        labels = torch.from_numpy(pack.index.labels)
        stream = Stream(source, pack.sources, labels, one_pixel)
        loader = Loader(stream, torch.from_numpy(train), 256, torch.device("cpu"))
        assert len(loader._order(0, 0)) == len(train)
        stages.end("order")
    print(json.dumps({"pictures": len(source.index), "stages": stages.found}))


def measure(count: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="onsight-entries-") as made:
        folder, cache = Path(made) / "tiny", Path(made) / "cache"
        folder.mkdir()
        make_shards(folder, count)
        run = [sys.executable, __file__, "--folder", folder, "--cache", cache, "--until"]
        found = {
            name: run_json(*run, "index" if name == "first" else "all")
            for name in ("first", "build", "open")
        }
    assert found["first"]["pictures"] == count
    print(count, json.dumps(found), file=sys.stderr)
    return {"count": count} | {name: one["stages"] for name, one in found.items()}


def show(found: list[dict]) -> None:
    rows, per_entry = [], []
    for one in found:
        row, each = [f"{one['count']:,}"], [f"{one['count']:,}"]
        for process, stage in COLUMNS.values():
            facts = one[process][stage]
            row.append(f"{facts['processor']:.2f} ({facts['wall']:.2f})")
            each.append(f"{1e6 * facts['processor'] / one['count']:.2f}")
        for process, stage in MEMORY.values():
            row.append(f"{one[process][stage]['bytes'] / 1e6:,.0f}")
            each.append(f"{one[process][stage]['bytes'] / one['count']:,.0f}")
        rows.append(row)
        per_entry.append(each)
    most = found[-1]
    if len(found) > 1:
        rows.append(["10,000,000, extrapolated", *extrapolated(found[-2], most, 10_000_000)])
    lines = [
        "## An index of shards",
        "",
        f"{circumstances('numpy')}. Local shards of {SHARD_PICTURES:,} JPEGs of 8x8 pixels, each "
        "with its class. Seconds of the processor, of the wall in brackets.",
        "",
        *table(["pictures", *COLUMNS, *MEMORY], rows),
        "",
        "The same for an entry: microseconds of the processor, and bytes.",
        "",
        *table(["pictures", *COLUMNS, *MEMORY], per_entry),
    ]
    write_section("shards_entries", lines)


def extrapolated(less: dict, more: dict, count: int) -> list[str]:
    """The line through two counts, at a third: of processor seconds, and of megabytes."""

    def at(values: list[float]) -> float:
        slope = (values[1] - values[0]) / (more["count"] - less["count"])
        return values[1] + slope * (count - more["count"])

    seconds = [
        at([one[process][stage]["processor"] for one in (less, more)])
        for process, stage in COLUMNS.values()
    ]
    memory = [
        at([one[process][stage]["bytes"] for one in (less, more)]) / 1e6
        for process, stage in MEMORY.values()
    ]
    return [f"{one:.1f}" for one in seconds] + [f"{one:,.0f}" for one in memory]


def measure_headers(count: int, rounds: int) -> None:
    """The index with and without our reader of headers, in turns, in one process."""
    from onsight.data.sources import archive_tar
    from onsight.data.sources.web_dataset import read_shards

    ours = archive_tar.ordinary_headers
    ways = {"tarfile": lambda descriptor: None, "here": ours}
    each: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as made:
        make_shards(Path(made), count)
        for name in [*ways, *(list(ways) * rounds)]:
            archive_tar.ordinary_headers = ways[name]
            begun = time.process_time()
            assert len(read_shards(Path(made)).index) == count
            each[name].append(1e6 * (time.process_time() - begun) / count)
    ratios = [old / new for old, new in zip(each["tarfile"][1:], each["here"][1:], strict=True)]
    medians = {name: statistics.median(times[1:]) for name, times in each.items()}
    lines = [
        "## Headers of shards, with and without tarfile",
        "",
        f"{circumstances('numpy')}. {count:,} pictures indexed, in turns: {medians['tarfile']:.1f} "
        f"and {medians['here']:.1f} microseconds of the processor a picture; paired ratio "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, n = {rounds}).",
    ]
    write_section("shards_headers", lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", type=int, nargs="*", default=[100_000, 1_000_000, 3_000_000])
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.until:
        run_stages(args.until, args.folder, args.cache)
    elif args.headers:
        measure_headers(100_000, args.rounds)
    else:
        show([measure(count) for count in args.counts])


if __name__ == "__main__":
    main()
