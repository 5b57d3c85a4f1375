"""What does an epoch from an object store cost?

    python benchmarks/shards.py store [--images 10000] [--rounds 3] [--shard-images 200]
    python benchmarks/shards.py web --images 20000 --rounds 4 --shard-images 500

store: an S3-compatible server on this machine holds shards of JPEGs. (It needs s3fs and
moto[server], listens on loopback and ends with this process.) An epoch is streamed from a local
folder, from the server with an empty cache, and from the server while one request in five is
answered with 500 or 503, slowly, or only half. moto takes as much of the two cores as the training
that it serves. So the shards are also fetched from nginx, if it is installed, which takes next to
nothing, and the CPU time of the training alone is stated.
web: without moto, for larger shards.

Each epoch is checked: every image once, and the same pixels.
"""

import argparse
import io
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import Facts, circumstances, run_json, table, write_section
from image_files import make_jpeg

BUCKET, SIDE, TRAINED = "onsight-benchmark", 256, (96, 96)
Epochs = dict[str, list[Facts]]  # the results of each epoch, by kind

FAULTS = ("500", "503", "slow", "cut")
NAMES = {
    "local": "local folder",
    "web": "HTTP from nginx, cold cache",
    "copied": "S3, warm cache",
    "sound": "S3, cold cache",
    "faulty": "S3, one request in five fails, cold cache",
}


def serve(port_file: str, share: float) -> None:
    """Run an S3 server until stdin ends. share: the part of the shard requests that fail."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    kinds = itertools.cycle(FAULTS)
    rng = random.Random(0)

    def faulty(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        is_shard = environ["REQUEST_METHOD"] == "GET" and ".tar" in environ["PATH_INFO"]
        kind = next(kinds) if is_shard and rng.random() < share else ""
        if kind in ("500", "503"):
            start_response(f"{kind} planted", [("Content-Length", "0")])
            return [b""]
        if kind == "slow":
            time.sleep(0.3)
        parts: Iterable[bytes] = app(environ, start_response)
        if kind != "cut":
            return parts
        body = b"".join(parts)
        return itertools.chain([body[: len(body) // 2]], _break_connection())

    server = make_server("127.0.0.1", 0, faulty, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Path(port_file).write_text(str(server.server_port))
    sys.stdin.read()


def _break_connection() -> Iterator[bytes]:
    yield b""
    raise ConnectionResetError("planted")


def write_tar(path: Path, samples: Iterable[tuple[str, bytes, bytes]]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, label in samples:
            for member, data in ((name, content), (f"{name.partition('.')[0]}.cls", label)):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def make_photos(folder: Path, images: int, each: int) -> None:
    for start in range(0, images, each):
        numbers = range(start, min(start + each, images))
        samples = [
            (f"{number:07d}.jpg", make_jpeg(number, (SIDE, SIDE)), b"c%d" % (number % 10))
            for number in numbers
        ]
        write_tar(folder / f"part-{start // each:04d}.tar", samples)


def epoch(url: str, cache: str, keep_copies: int) -> None:
    """Stream and check an epoch; print its speed and a digest of its images."""
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
    loader = Loader(dataset.images, dataset.ids(TRAIN), 64, torch.device("cpu"))
    digest, seen = hashlib.sha256(), []
    begun, cpu_begun = time.perf_counter(), time.process_time()
    for batch in loader.epoch(0, 0):
        digest.update(batch.images.numpy().tobytes())
        seen.append(batch.ids)
    seconds = time.perf_counter() - begun
    cpu_seconds = time.process_time() - cpu_begun
    numbers = torch.cat(seen)
    assert torch.equal(numbers.sort().values, dataset.ids(TRAIN).sort().values)
    middle = len(seen) // 2
    resumed = torch.cat([batch.ids for batch in loader.epoch(0, 0, middle)])
    assert torch.equal(resumed, torch.cat(seen[middle:]))
    facts: Facts = {"images_per_second": len(numbers) / seconds, "digest": digest.hexdigest()}
    facts["cpu_us_per_image"] = 1e6 * cpu_seconds / len(numbers)
    print(json.dumps(facts | {"images": len(numbers)}))


def upload(folder: Path, port: int) -> None:
    import fsspec

    filesystem = fsspec.filesystem("s3", endpoint_url=f"http://127.0.0.1:{port}")
    filesystem.mkdir(BUCKET)
    for path in sorted(folder.glob("*.tar")):
        filesystem.pipe_file(f"{BUCKET}/set/{path.name}", path.read_bytes())


@contextmanager
def s3_server(share: float, folder: Path, work: Path) -> Iterator[str]:
    """Start a server with the shards; yields its address."""
    port_file = work / f"port-{share}"
    command = [sys.executable, __file__, "serve", str(port_file), str(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not port_file.exists() or not port_file.read_text():
            time.sleep(0.05)
        port = int(port_file.read_text())
        upload(folder, port)
        yield f"http://127.0.0.1:{port}"
        assert process.stdin
        process.stdin.close()


@contextmanager
def web_server(folder: Path, work: Path) -> Iterator[str | None]:
    """Start nginx with the shards; yields its URL, or None if nginx is not installed."""
    program = shutil.which("nginx")
    if program is None:
        yield None
        return
    work.chmod(0o711)  # nginx's worker runs as another user
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    places = "".join(
        f"{name}_temp_path {work}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (work / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {work}/pid; error_log {work}/log; events {{}} http "
        f"{{ access_log off; sendfile on; {places} server {{ listen 127.0.0.1:{port}; "
        f"root {folder}; autoindex on; }} }}"
    )
    command = [program, "-e", f"{work}/log", "-c", f"{work}/nginx.conf"]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(1)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def measure(what: str, images: int, rounds: int, each: int) -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "made", "AWS_SECRET_ACCESS_KEY": "up"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    with tempfile.TemporaryDirectory() as made, ExitStack() as started:
        work = Path(made)
        folder = work / "photos"
        folder.mkdir()
        make_photos(folder, images, each)
        places = {"local": (str(folder), "")}
        if web := started.enter_context(web_server(folder, work)):
            places["web"] = web, ""
        if what == "store":
            sound, faulty = (
                started.enter_context(s3_server(share, folder, work)) for share in (0.0, 0.2)
            )
            url = f"s3://{BUCKET}/set"
            places |= {"sound": (url, sound), "copied": (url, sound), "faulty": (url, faulty)}
        show(what, measure_epochs(places, work, rounds), images, each)


def measure_epochs(places: dict[str, tuple[str, str]], work: Path, rounds: int) -> Epochs:
    """The results of each epoch, by kind. places: URL and address of the S3 server, by kind."""
    found: Epochs = {kind: [] for kind in places}
    for _, (kind, (url, endpoint)) in itertools.product(range(rounds), places.items()):
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        if not endpoint:
            del os.environ["AWS_ENDPOINT_URL"]
        keep = str(int(kind in ("copied", "local")))
        command = [sys.executable, __file__, "epoch", url, str(work / f"cache-{kind}"), keep]
        found[kind].append(run_json(*command))
        print(kind, found[kind][-1], file=sys.stderr)
    return found


def show(what: str, found: Epochs, images: int, each: int) -> None:
    speeds, cpu_times = (
        {kind: [epoch[fact] for epoch in epochs] for kind, epochs in found.items()}
        for fact in ("images_per_second", "cpu_us_per_image")
    )
    rows = []
    for kind in found:
        ratios, cpu_ratios = (
            [here / local for here, local in zip(values[kind], values["local"], strict=True)]
            for values in (speeds, cpu_times)
        )
        rows.append(
            [
                NAMES[kind],
                f"{statistics.median(speeds[kind]):,.0f}",
                describe_spread(ratios),
                f"{statistics.median(cpu_times[kind]):,.0f}",
                describe_spread(cpu_ratios),
            ]
        )
    digests = {epoch["digest"] for epochs in found.values() for epoch in epochs}
    bits = "the same bits" if len(digests) == 1 else f"{len(digests)} DIFFERENT RESULTS"
    title = "An epoch from shards" if what == "store" else "An epoch from larger shards"
    lines = [
        f"## {title}",
        "",
        f"{circumstances('numpy')}. {images:,} JPEGs of {SIDE}x{SIDE} pixels in shards of "
        f"{each}, decoded for {TRAINED[0]}x{TRAINED[1]}. The servers run on the same two cores; "
        f"the S3 server is moto. {len(speeds['local'])} interleaved rounds. Every epoch has each "
        f"image once, with {bits}; an epoch resumed in the middle has the remaining images in the "
        "same order.",
        "",
        *table(
            ["from", "images/s", "/ local (range)", "CPU µs per image", "/ local (range)"], rows
        ),
    ]
    write_section(f"shards_{what}", lines)


def describe_spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["store", "web", "serve", "epoch"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard-images", type=int, default=200)
    args = parser.parse_args(arguments)
    if args.what == "serve":
        serve(args.rest[0], float(args.rest[1]))
    elif args.what == "epoch":
        epoch(args.rest[0], args.rest[1], int(args.rest[2]))
    else:
        measure(args.what, args.images, args.rounds, args.shard_images)


if __name__ == "__main__":
    main()
