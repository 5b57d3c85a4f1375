"""Measure what the simulation of scaling.py is calibrated on and compared with.

    python benchmarks/scaling_measure.py photos FOLDER                  # once: JPEGs for `units`
    python benchmarks/scaling_measure.py units FOLDER LINES
    python benchmarks/scaling_measure.py ranks DATA LINES [--batch-size 256]
    python benchmarks/scaling_measure.py kill DATA LINES

Each command adds a round to LINES, as a line of JSON; run each several times, in turn. ranks: LeNet
at 32x32 with 1, 2 and 3 ranks of one thread, with the same number of images per rank. kill: two
ranks, undisturbed and with one killed by SIGKILL.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RANKS = (1, 2, 3)
STEPS, EPOCHS = {256: 50, 32: 200}, 3
KILLED_AT, CHECKPOINT_STEPS, KILL_STEPS, KILL_EPOCHS = 85, 40, 60, 3


def make_photos(folder: Path, count: int = 400) -> None:
    """Write photographs with a shorter side of 256 pixels, as in large datasets."""
    from image_files import photo_folder
    from PIL import Image

    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(photo_folder(count).rglob("*.jpg"))):
        with Image.open(path) as image:
            scale = 256 / min(image.size)
            size = round(image.width * scale), round(image.height * scale)
            image.resize(size).save(folder / f"{number:04d}.jpg", quality=90)


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def decode(folder: Path) -> dict[str, float]:
    """Time decoding a crop of each photograph at 224x224, in one thread."""
    from onsight.data.fit import ImageFormat
    from onsight.data.stream import CropWindow, crop_image

    contents = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))]
    target, window = ImageFormat(224, 224, 3), CropWindow(0.7, 0.7, 0.1, -0.1)
    seconds = median_seconds(
        lambda: [crop_image(content, window, target) for content in contents], 5
    )
    each = statistics.mean(map(len, contents))
    return {"decode_seconds": seconds / len(contents), "image_bytes": each}


def checkpoint() -> dict[str, float]:
    """Time copying the tensors of a checkpoint, and writing it as a run does, per byte."""
    import torch

    from onsight.tensorfile import write_tensors

    tensors = {f"layer-{number}": torch.randn(2_500_000) for number in range(20)}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    copy = median_seconds(lambda: [tensor.to("cpu", copy=True) for tensor in tensors.values()], 5)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder) / "checkpoint.safetensors"
        write = median_seconds(lambda: write_tensors(place, tensors, {}), 5)
    return {"copy_byte_seconds": copy / nbytes, "write_byte_seconds": write / nbytes}


def order(count: int = 2_000_000, ranks: int = 1000) -> dict[str, float]:
    """Time the split and an epoch's order over shards, per entry."""
    import numpy as np

    from onsight.data.shards.order import draw_shard_order
    from onsight.data.split import assign_splits

    digests = np.random.default_rng(0).integers(0, 256, (count, 16), np.uint8)
    numbers = np.arange(count, dtype=np.int32) // 4000
    shards = np.stack([numbers, numbers], axis=1)
    batches = np.full(count // 32_000 + 1, 32_000)
    batches[-1] = count - batches[:-1].sum()
    labels, unsplit = numbers % 1000, np.zeros(count, np.int8)
    split = median_seconds(lambda: assign_splits(digests, labels, unsplit, 0.1, 0.1), 1)
    ordered = median_seconds(lambda: draw_shard_order(shards, 0, 0, batches, ranks), 1)
    return {"split_entry_seconds": split / count, "order_entry_seconds": ordered / count}


def _store_client(port: int, requests: int) -> float:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=False)
    store.set("beat", "1 2 3 0 epoch 1, step 1")
    begun = time.perf_counter()
    for _ in range(requests):
        store.get("beat")
    return requests / (time.perf_counter() - begun)


def store_requests(clients: int = 2) -> dict[str, float]:
    """Requests per second of the ranks' TCPStore; server and clients share this machine."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with get_context("spawn").Pool(clients) as pool:
        rates = pool.starmap(_store_client, [(server.port, 20_000)] * clients)
    return {"store_requests_per_second": sum(rates)}


def _convolve(meeting: str, rank: int, size: int) -> float:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    inputs, weights = torch.randn(64, 32, 28, 28), torch.randn(32, 32, 3, 3)
    dist.barrier()
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < 2:
        torch.conv2d(inputs, weights)
        done += 1
    return done / 2


def _all_reduce(meeting: str, rank: int, size: int, counts: tuple[int, ...]) -> list[float]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)

    def once(numbers: torch.Tensor) -> float:
        dist.barrier()
        return median_seconds(lambda: dist.all_reduce(numbers), 1)

    return [
        statistics.median(once(torch.zeros(count)) for _ in range(60 if count < 1e6 else 9))
        for count in counts
    ]


def together(work: Callable[..., object], size: int, *arguments: object) -> list[Any]:
    """Run a function in a number of processes at once; returns their results."""
    with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(size) as pool:
        meeting = f"file://{folder}/meeting"
        return pool.starmap(work, [(meeting, rank, size, *arguments) for rank in range(size)])


def units(photos: Path, ranks: Sequence[int]) -> dict[str, object]:
    """The cost of each operation by itself."""
    counts = (4, 61_706, 5_000_000)
    return {
        "all_reduce_bytes": [4 * count for count in counts],
        "all_reduce_seconds": {n: max_of(together(_all_reduce, n, counts)) for n in ranks},
        "convolutions_per_second": {n: sum(together(_convolve, n)) for n in ranks},
        **store_requests(),
        **decode(photos),
        **checkpoint(),
        **order(),
    }


def max_of(columns: list[list[float]]) -> list[float]:
    return [max(column) for column in zip(*columns, strict=True)]


def train(
    data: str, ranks: int, batch: int, steps: int, epochs: int, *words: str, kill_at: int = 0
) -> tuple[float, list[float], float, list[dict[str, Any]]]:
    """Train; returns the start, the first rank's steps, the kill (Unix times), and the metrics."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onsight", "train", data, "--out", f"{folder}/run"]
        command += ["--model", "timed_net:TimedLeNet", "--image-size", "32", "--threads", "1"]
        command += ["--plan", "default", "--folds", "1", "--epochs", str(epochs)]
        command += ["--ranks", str(ranks), "--batch-size", str(ranks * batch), *words]
        command += ["--train-images", str(ranks * batch * steps)]
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"STEP_TIMES": folder, "PYTHONPATH": paths, "KILL_AT": str(kill_at)}
        begun = time.time()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        metrics = Path(folder, "run/metrics.jsonl").read_text()
        rows = [json.loads(line) for line in metrics.splitlines()]
        times = [
            moment for (moment,) in struct.iter_unpack("d", Path(folder, "rank-0").read_bytes())
        ]
        killed = float(Path(folder, "killed").read_text()) if kill_at else 0.0
    print(f"  {ranks} ranks: {[round(row['images_per_second']) for row in rows]}", file=sys.stderr)
    return begun, times, killed, rows


def one_round(data: str, batch: int, numbers: Sequence[int]) -> dict[str, object]:
    """images/s, start-up and deviation of steps by number of ranks, without the first epoch."""
    found: dict[str, object] = {"batch": batch}
    for ranks in numbers:
        begun, times, _, rows = train(data, ranks, batch, STEPS[batch], EPOCHS)
        each = len(times) // EPOCHS
        seconds = [
            after - before
            for epoch in range(1, EPOCHS)
            for before, after in pairwise(times[epoch * each : (epoch + 1) * each])
        ]
        found[str(ranks)] = {
            "images_per_second": statistics.mean(row["images_per_second"] for row in rows[1:]),
            "start_seconds": times[0] - begun,
            "deviation": statistics.stdev(seconds) / statistics.mean(seconds),
        }
    return found


def kill(data: str) -> dict[str, object]:
    """Measure what a killed rank costs: a run with and one without, from first to last step."""
    words = ["--checkpoint-steps", str(CHECKPOINT_STEPS), "--restarts", "1"]
    run = partial(train, data, 2, 256, KILL_STEPS, KILL_EPOCHS, *words)
    _, undisturbed, _, _ = run()
    _, disturbed, killed, _ = run(kill_at=KILLED_AT)
    back = min(moment for moment in disturbed if moment > killed + 0.5)
    return {
        "undisturbed_seconds": undisturbed[-1] - undisturbed[0],
        "killed_seconds": disturbed[-1] - disturbed[0],
        "restart_seconds": back - killed,
        "steps_repeated": len(disturbed) - len(undisturbed),
        "step_seconds": statistics.median(
            after - before for before, after in pairwise(undisturbed)
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["photos", "units", "ranks", "kill"])
    parser.add_argument("data")
    parser.add_argument("lines", nargs="?", type=Path)
    parser.add_argument("--batch-size", type=int, default=256, choices=list(STEPS))
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="numbers of ranks")
    options = parser.parse_args(arguments)
    if options.what == "photos":
        return make_photos(Path(options.data))
    found = {
        "units": lambda: units(Path(options.data), options.ranks),
        "ranks": lambda: one_round(options.data, options.batch_size, options.ranks),
        "kill": lambda: kill(options.data),
    }[options.what]()
    with options.lines.open("a") as file:
        file.write(json.dumps({"what": options.what, **found}) + "\n")
    return None


if __name__ == "__main__":
    main()
