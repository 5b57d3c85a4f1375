"""What do shards cost: an epoch from an object store, and an index of millions of pictures?

    python benchmarks/shards.py store [--pictures 1500] [--rounds 3]
    python benchmarks/shards.py entries [--counts 100000 1000000]

store: an S3-compatible server of this machine (needs s3fs and moto[server]; it listens on loopback
and ends with this process) holds shards of JPEGs. An epoch is streamed from a local folder, from
the server with nothing copied yet, and from the server while it answers one request in five with
500 or 503, slowly, or half. Each epoch is checked: every picture once, and the same pixels.
entries: shards of tiny pictures (one file of 10,000, under as many names as needed), in a process
of its own for each stage: index them, open the kept index, make the pack, open it and split.
"""

import argparse
import io
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import circumstances, run_json, table, write_section

BUCKET, SIDE, TRAINED = "onsight-benchmark", 256, (96, 96)
SHARD_PICTURES = 50
TINY_PICTURES = 10_000
FAULTS = ("500", "503", "slow", "cut")


def serve(port_file: str, share: float) -> None:
    """An S3 server until stdin ends. share: of the requests for parts that go wrong."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    kinds = itertools.cycle(FAULTS)
    drawn = random.Random(0)

    def faulty(environ, start_response):
        is_part = environ["REQUEST_METHOD"] == "GET" and ".tar" in environ["PATH_INFO"]
        kind = next(kinds) if is_part and drawn.random() < share else ""
        if kind in ("500", "503"):
            start_response(f"{kind} planted", [("Content-Length", "0")])
            return [b""]
        if kind == "slow":
            time.sleep(0.3)
        parts = app(environ, start_response)
        if kind != "cut":
            return parts
        body = b"".join(parts)
        return itertools.chain([body[: len(body) // 2]], _broken())

    server = make_server("127.0.0.1", 0, faulty, threaded=True)
    import threading

    threading.Thread(target=server.serve_forever, daemon=True).start()
    Path(port_file).write_text(str(server.server_port))
    sys.stdin.read()


def _broken():
    raise ConnectionResetError("planted")
    yield b""


def jpeg(number: int) -> bytes:
    from PIL import Image

    rough = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(rough).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def tiny_png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, samples) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, label in samples:
            for member, data in ((name, content), (f"{name.partition('.')[0]}.cls", label)):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def make_photos(folder: Path, pictures: int) -> None:
    for start in range(0, pictures, SHARD_PICTURES):
        numbers = range(start, min(start + SHARD_PICTURES, pictures))
        samples = [(f"{one:07d}.jpg", jpeg(one), b"c%d" % (one % 10)) for one in numbers]
        write_tar(folder / f"part-{start // SHARD_PICTURES:04d}.tar", samples)


def epoch(url: str, cache: str, keep_copies: int) -> None:
    """Stream an epoch, and print how long it took and a digest of what was seen."""
    import hashlib

    import torch

    from onsight.config import make_config
    from onsight.data.dataset import open_dataset
    from onsight.data.index import TRAIN
    from onsight.data.loader import Loader
    from onsight.data.sources.find import find_source

    config = make_config({"residency": "stream", "folds": "1"})
    place = Path(cache)
    dataset = open_dataset(find_source(url, cache_folder=place), config, TRAINED, place, 2)
    if not keep_copies:
        for copy in (place / "shards").glob("*.shard"):
            copy.unlink()
    dataset = open_dataset(find_source(url, cache_folder=place), config, TRAINED, place, 2)
    loader = Loader(dataset.pictures, dataset.ids(TRAIN), 64, torch.device("cpu"))
    digest, seen = hashlib.sha256(), []
    begun = time.perf_counter()
    for batch in loader.epoch(0, 0):
        digest.update(batch.images.numpy().tobytes())
        seen.append(batch.ids)
    seconds = time.perf_counter() - begun
    numbers = torch.cat(seen)
    assert torch.equal(numbers.sort().values, dataset.ids(TRAIN).sort().values)
    middle = len(seen) // 2
    resumed = torch.cat([batch.ids for batch in loader.epoch(0, 0, middle)])
    assert torch.equal(resumed, torch.cat(seen[middle:]))
    facts = {"images_per_second": len(numbers) / seconds, "digest": digest.hexdigest()}
    print(json.dumps({**facts, "images": len(numbers)}))


def upload(folder: Path, port: int) -> None:
    import fsspec

    filesystem = fsspec.filesystem("s3", endpoint_url=f"http://127.0.0.1:{port}")
    filesystem.mkdir(BUCKET)
    for path in sorted(folder.glob("*.tar")):
        filesystem.pipe_file(f"{BUCKET}/set/{path.name}", path.read_bytes())


def with_server(share: float, folder: Path, work: Path):
    """A started server that holds the shards: its process and its port."""
    port_file = work / f"port-{share}"
    command = [sys.executable, __file__, "serve", str(port_file), str(share)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    while not port_file.exists() or not port_file.read_text():
        time.sleep(0.05)
    port = int(port_file.read_text())
    upload(folder, port)
    return process, port


def measure_store(pictures: int, rounds: int) -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "made", "AWS_SECRET_ACCESS_KEY": "up"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        folder = work / "photos"
        folder.mkdir()
        make_photos(folder, pictures)
        servers = {
            "sound": with_server(0.0, folder, work),
            "faulty": with_server(0.2, folder, work),
        }
        speeds = {"local": [], "sound": [], "copied": [], "faulty": []}
        digests = set()
        try:
            for _, kind in itertools.product(range(rounds), speeds):
                if kind == "local":
                    url, endpoint = str(folder), ""
                else:
                    server = "sound" if kind == "copied" else kind
                    url = f"s3://{BUCKET}/set"
                    endpoint = f"http://127.0.0.1:{servers[server][1]}"
                os.environ["AWS_ENDPOINT_URL"] = endpoint
                if not endpoint:
                    del os.environ["AWS_ENDPOINT_URL"]
                cache = work / f"cache-{kind}"
                keep = str(int(kind in ("copied", "local")))
                found = run_json(sys.executable, __file__, "epoch", url, str(cache), keep)
                speeds[kind].append(found["images_per_second"])
                digests.add(found["digest"])
                print(kind, found, file=sys.stderr)
        finally:
            for process, _ in servers.values():
                process.stdin.close()
                process.wait()
    show_store(speeds, digests, pictures, rounds)


def show_store(speeds, digests, pictures: int, rounds: int) -> None:
    names = {
        "local": "local folder",
        "copied": "S3, copies kept from before",
        "sound": "S3, nothing copied yet",
        "faulty": "S3, one request in five goes wrong, nothing copied yet",
    }
    rows = []
    for kind, name in names.items():
        ratios = [one / here for one, here in zip(speeds[kind], speeds["local"], strict=True)]
        speed = statistics.median(speeds[kind])
        rows.append(
            [
                name,
                f"{speed:,.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    same = "the same bits in each" if len(digests) == 1 else f"{len(digests)} DIFFERENT EPOCHS"
    lines = [
        "## An epoch from shards",
        "",
        f"{circumstances('numpy')}. {pictures:,} JPEGs of {SIDE}x{SIDE} pixels in shards of "
        f"{SHARD_PICTURES}, decoded for {TRAINED[0]}x{TRAINED[1]}; the server is moto's, on the "
        f"same two cores; {rounds} rounds, taken in turns. Every picture once, {same}; an epoch "
        "resumed in the middle has the rest of its pictures in the same order.",
        "",
        *table(["from", "images/s", "of local", "range"], rows),
    ]
    write_section("shards_store", lines)


def stage(name: str, folder: str, cache: str) -> None:
    """One stage over tiny pictures, and what it took."""
    from growth import held_bytes

    from onsight.data.fit import PictureFormat
    from onsight.data.index import TRAIN
    from onsight.data.pack import open_pack
    from onsight.data.packing import Job
    from onsight.data.sources.find import find_source
    from onsight.data.split import assign, leaks

    before = held_bytes()
    begun = time.perf_counter()
    source = find_source(folder, cache_folder=Path(cache))
    found = {"index": time.perf_counter() - begun, "pictures": len(source.index)}
    found["index_bytes"] = held_bytes() - before
    if name == "pack":
        begun = time.perf_counter()
        pack = open_pack(Job(source, PictureFormat(1, 1, 1), threads=2), Path(cache))
        found["pack"] = time.perf_counter() - begun
        begun = time.perf_counter()
        splits = assign(pack.digests, pack.index.splits, 0.1, 0.1)
        splits[leaks(pack.digests, splits)] = 0
        assert (splits == TRAIN).any()
        found["split"] = time.perf_counter() - begun
        found["bytes"] = held_bytes() - before
    print(json.dumps(found))


def measure_entries(counts: list[int], packed: int) -> None:
    rows = []
    for count in counts:
        with tempfile.TemporaryDirectory() as made:
            folder, cache = Path(made) / "tiny", Path(made) / "cache"
            folder.mkdir()
            content = tiny_png()
            samples = ((f"{n:07d}.png", content, b"c%d" % (n % 1000)) for n in range(TINY_PICTURES))
            write_tar(folder / "part-000000.tar", samples)
            for number in range(1, count // TINY_PICTURES):
                os.link(folder / "part-000000.tar", folder / f"part-{number:06d}.tar")
            run = [sys.executable, __file__, "stage"]
            first = run_json(*run, "index", str(folder), str(cache))
            print(first, file=sys.stderr)
            again = run_json(*run, "index", str(folder), str(cache))
            print(again, file=sys.stderr)
            row = [
                f"{first['pictures']:,}",
                f"{first['index']:,.1f}",
                f"{again['index']:.2f}",
                f"{first['index_bytes'] / 1e6:,.0f}",
                f"{again['index_bytes'] / 1e6:,.0f}",
            ]
            if count <= packed:
                run_json(*run, "pack", str(folder), str(cache))
                opened = run_json(*run, "pack", str(folder), str(cache))
                row += [
                    f"{opened['pack']:.2f}",
                    f"{opened['split']:.2f}",
                    f"{opened['bytes'] / 1e6:,.0f}",
                ]
            rows.append(row + ["-"] * (8 - len(row)))
            print(row, file=sys.stderr)
    header = [
        "pictures",
        "first index s",
        "kept index s",
        "MB, first",
        "MB, kept",
        "open pack s",
        "split s",
        "MB in all",
    ]
    lines = [
        "## An index of shards",
        "",
        f"{circumstances('numpy')}. Shards of {TINY_PICTURES:,} one-pixel PNGs in 1,000 classes.",
        "",
        *table(header, rows),
    ]
    write_section("shards_entries", lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--pictures", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--packed", type=int, default=1_000_000, help="the most that are packed")
    args = parser.parse_args()
    if args.what == "serve":
        serve(args.rest[0], float(args.rest[1]))
    elif args.what == "epoch":
        epoch(args.rest[0], args.rest[1], int(args.rest[2]))
    elif args.what == "stage":
        stage(*args.rest)
    elif args.what == "store":
        measure_store(args.pictures, args.rounds)
    else:
        measure_entries(args.counts, args.packed)


if __name__ == "__main__":
    main()
