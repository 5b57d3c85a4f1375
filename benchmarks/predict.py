"""How close is `onsight predict` to what the machine can do, and does it work at scale?

    python benchmarks/predict.py MODEL FOLDER [--images 5000] [--rounds 3]
        [--inputs 100000] [--kills 20]

Three questions. Throughput: the command's rows per second, from FOLDER's JPEGs to a CSV file,
compared with decoding alone (the same decoder, all cores, no model) and the model alone (decoded
images, in batches in RAM). If the model computes on the same cores as the decoder, both need their
time there. The last column is therefore the rate of doing these two one after the other. The
command's start-up is stated separately. Memory: for a list of --inputs paths on stdin, with
repeated files, the resident memory after a tenth of the rows and at the end. Interruptions: the
command is killed --kills times at random moments and resumed; is its file the same, byte for byte,
as that of an uninterrupted run?
"""

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the command does on a busy machine

import numpy as np
from harness import circumstances, interleave, table, write_section

from onsight.inference.images import read_image, walk
from onsight.inference.predictor import Predictor, load
from onsight.inference.resumable_file import rows_path
from onsight_explain.threads import usable_cores

COMMAND, DECODING, MODEL = "onsight predict", "decoding alone", "the model alone"
POLL_SECONDS = 0.02
CHUNK = 64


def start(
    model: Path, arguments: Iterable[str], listed: Path | None = None
) -> subprocess.Popen[str]:
    """Start the command; listed: a file for its stdin."""
    command = [sys.executable, "-m", "onsight", "predict", str(model), *arguments]
    source = open(listed, "rb") if listed else None  # noqa: SIM115  # closed with the process
    return subprocess.Popen(command, stdin=source, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for the process; returns its stderr. Raises SystemExit if it failed."""
    stderr: str = process.communicate()[1]
    if process.stdin:
        process.stdin.close()
    if process.returncode:
        raise SystemExit(stderr)
    return stderr


def command_rate(model: Path, listed: Path, out: Path, startups: list[float]) -> float:
    """Images per second of the command; appends the seconds of its start-up to startups."""
    begun = time.perf_counter()
    stderr = finish(start(model, ["-", "--csv", str(out)], listed))
    seconds = time.perf_counter() - begun
    rows = len(listed.read_bytes().splitlines())
    found = re.search(r"([\d,]+) images/s", stderr)
    assert found, stderr
    rate = float(found[1].replace(",", ""))
    startups.append(seconds - rows / rate)
    return rate


def decoding_rate(paths: list[str], predictor: Predictor) -> float:
    def decode(chunk: list[str]) -> None:
        for path in chunk:
            read_image(path, predictor.format)

    chunks = [paths[place : place + CHUNK] for place in range(0, len(paths), CHUNK)]
    begun = time.perf_counter()
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(decode, chunks))
    return len(paths) / (time.perf_counter() - begun)


def model_rate(batches: list[np.ndarray], predictor: Predictor) -> float:
    begun = time.perf_counter()
    for batch in batches:
        predictor.runner.run(batch)
    return sum(map(len, batches)) / (time.perf_counter() - begun)


def throughput(model: Path, paths: list[str], listed: Path, folder: Path, rounds: int) -> list[str]:
    predictor = load(model)
    with ThreadPoolExecutor(usable_cores()) as pool:
        pixels = list(pool.map(partial(read_image, target=predictor.format), paths))
    size = predictor.runner.batch_size
    batches = [np.stack(pixels[place : place + size]) for place in range(0, len(pixels), size)]
    startups: list[float] = []
    contenders: dict[str, Callable[[], float]] = {
        COMMAND: lambda: command_rate(model, listed, folder / "rate.csv", startups),
        DECODING: lambda: decoding_rate(paths, predictor),
        MODEL: lambda: model_rate(batches, predictor),
    }
    rates = interleave(contenders, rounds)
    rows = []
    for ours, decoding, inference in zip(*rates.values(), strict=True):
        in_turn = 1 / (1 / decoding + 1 / inference)
        slower = min(decoding, inference)
        cells = [f"{rate:,.0f}" for rate in (ours, decoding, inference)]
        rows.append([*cells, f"{ours / slower:.2f}", f"{ours / in_turn:.2f}"])
    header = [COMMAND, DECODING, MODEL, "/ the slower", "/ one after the other"]
    facts = ", ".join(f"{name} {fact}" for name, fact in predictor.runner.facts.items())
    return [
        f"{facts}; {len(paths):,} files, images/s; start-up ({min(startups):.1f} to "
        f"{max(startups):.1f} s) is not included:",
        "",
        *table(header, rows),
    ]


def resident_megabytes(process: subprocess.Popen[str]) -> float:
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


def measure_memory(model: Path, paths: list[str], inputs: int, folder: Path) -> list[str]:
    listed, out = folder / "repeated", folder / "memory.jsonl"
    with open(listed, "w") as file:
        file.writelines(f"{path}\n" for path in itertools.islice(itertools.cycle(paths), inputs))
    process = start(model, ["-", "--jsonl", str(out)], listed)
    row_bytes = None
    early = last = peak = 0.0
    while process.poll() is None:
        last = resident_megabytes(process) or last
        peak = max(peak, last)
        if not early and rows_path(out).exists():
            row_bytes = row_bytes or _row_bytes(rows_path(out))
            done = rows_path(out).stat().st_size / row_bytes if row_bytes else 0
            early = last if done >= inputs / 10 else 0.0
        time.sleep(POLL_SECONDS)
    finish(process)
    return [
        f"Memory over {inputs:,} inputs: {early:,.0f} MiB after a tenth, {last:,.0f} MiB at the "
        f"end, {peak:,.0f} MiB at most."
    ]


def _row_bytes(file: Path) -> float | None:
    content = file.read_bytes()
    return len(content) / content.count(b"\n") if b"\n" in content else None


def check_interruptions(model: Path, listed: Path, kills: int, folder: Path) -> list[str]:
    expected, out = folder / "expected.csv", folder / "killed.csv"
    finish(start(model, ["-", "--csv", str(expected)], listed))
    size, draw = expected.stat().st_size, random.Random(0)
    places = sorted(draw.randrange(size) for _ in range(kills))
    for place in places:
        process = start(model, ["-", "--csv", str(out), "--resume"], listed)
        while process.poll() is None:
            partial_file = rows_path(out)
            if partial_file.exists() and partial_file.stat().st_size >= place:
                time.sleep(draw.uniform(0, 5 * POLL_SECONDS))
                process.kill()
                break
            time.sleep(POLL_SECONDS)
        process.communicate()
    if not out.exists():
        finish(start(model, ["-", "--csv", str(out), "--resume"], listed))
    same = out.read_bytes() == expected.read_bytes()
    return [
        f"Killed {kills} times and resumed: the file is "
        f"{'identical' if same else 'NOT identical'} (n = {kills} kills, {size:,} bytes)."
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inputs", type=int, default=100_000, help="0: skip memory")
    parser.add_argument("--kills", type=int, default=20, help="0: skip interruptions")
    options = parser.parse_args(arguments)
    paths = list(itertools.islice(walk(str(options.folder.absolute())), options.images))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        listed = folder / "list"
        listed.write_text("".join(f"{path}\n" for path in paths))
        lines = throughput(options.model, paths, listed, folder, options.rounds)
        if options.inputs:
            lines += ["", *measure_memory(options.model, paths[:1000], options.inputs, folder)]
        if options.kills:
            lines += ["", *check_interruptions(options.model, listed, options.kills, folder)]
    title = f"## Predicting at scale: {options.model.name}"
    write_section(f"predict-{options.model.name}", [title, "", f"{circumstances()}.", "", *lines])


if __name__ == "__main__":
    main()
