"""How `onsight serve` handles load, compared with LitServe and FastAPI with the same weights.

python benchmarks/serve_load.py [--rounds 3] [--seconds 5]     (about five minutes)

"onsight" serves the model file in torch, "exported" the ONNX file of `onsight export`. Client and
server share the machine's cores. Each server has the same network, the same decoder and the same
requests: one photo of 500x375 in a form. Servers are paused while others are measured.
"""

import argparse
import asyncio
import io
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from onsight_explain.threads import choose_spinning

choose_spinning()  # before torch loads, for this process and every server

import numpy as np  # noqa: E402
import torch  # noqa: E402
from harness import interleave, paired  # noqa: E402
from PIL import Image, ImageFilter  # noqa: E402
from serve_client import Responses, open_loop, request, slow_clients  # noqa: E402

import onsight  # noqa: E402
from onsight.models.catalog import make_model  # noqa: E402
from onsight.models.file import ModelFile, save_model  # noqa: E402
from onsight.models.preprocessing import Preprocessing  # noqa: E402

PEERS = Path(__file__).parent / "peers"
CLIENTS = 32
CLASSES = 10
SLOW_CLIENTS = 200
OURS = ("onsight", "exported")


def make_photos(count: int = 32) -> list[bytes]:
    """JPEGs of 500x375 with shapes, edges and some noise, about as large as photos."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (15, 20, 3), np.uint8))
        smooth = coarse.resize((500, 375), Image.Resampling.NEAREST)
        pixels = np.asarray(smooth.filter(ImageFilter.GaussianBlur(2)), np.int16)
        noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
        data = io.BytesIO()
        Image.fromarray(noisy).save(data, "JPEG", quality=85)
        found.append(data.getvalue())
    return found


def make_file(folder: Path, model: str, side: int) -> Path:
    """A model file with random weights, which cost as much as trained ones."""
    torch.manual_seed(0)
    image = {"height": side, "width": side, "channels": 3, "fit": "crop"}
    scaling = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "precision": "fp32"}
    rest = {"background": (255, 255, 255), "pixel_limit": 64_000_000}
    preprocessing = Preprocessing.of({**image, **scaling, **rest})
    net = make_model(model, (3, side, side), CLASSES)
    classes = tuple(f"class {number}" for number in range(CLASSES))
    file = ModelFile(model, classes, preprocessing, {}, {}, dict(net.state_dict()))
    save_model(folder / "model.safetensors", file)
    return folder / "model.safetensors"


def export_file(file: Path, contents: list[bytes]) -> Path:
    """Export the model to ONNX, and verify it on the photos."""
    for number in range(CLASSES):
        folder = file.parent / "photos" / f"class {number}"
        folder.mkdir(parents=True)
        for place, content in enumerate(contents[:4]):
            (folder / f"{place}.jpg").write_bytes(content)
    target, photos = file.with_suffix(".onnx"), file.parent / "photos"
    command: list[str | Path] = [sys.executable, "-m", "onsight", "export", file, "--to", "onnx"]
    subprocess.run([*command, "--on", photos, "--out", target], check=True, stdout=sys.stderr)
    return target


class Contender:
    """A server in its own process group, which is paused while others are measured."""

    def __init__(self, name: str, command: list[str | Path], port: int) -> None:
        self.name, self.port = name, port
        self.cpu_ms: list[float] = []  # CPU time per image
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Wait until the server is healthy."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"{self.name} did not start")

    def cpu_seconds(self) -> float:
        """The CPU time of the process group so far."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Resume the server within the block."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def start(file: Path, exported: Path) -> dict[str, Contender]:
    serve = [sys.executable, "-m", "onsight", "serve"]
    commands: dict[str, Callable[[int], list[str | Path]]] = {
        "onsight": lambda port: [*serve, file, "--port", str(port)],
        "exported": lambda port: [*serve, exported, "--port", str(port)],
        "litserve": lambda port: [sys.executable, PEERS / "serve_litserve.py", file, str(port)],
        "fastapi": lambda port: [sys.executable, PEERS / "serve_fastapi.py", file, str(port)],
    }
    found = {}
    for name, command in commands.items():
        port = free_port()
        found[name] = Contender(name, command(port), port)
        found[name].wait()
        found[name].signal(signal.SIGSTOP)
    return found


def wrk_script(folder: Path, contents: list[bytes]) -> Path:
    """A Lua script that makes wrk send the photos in turn."""
    for number, content in enumerate(contents):
        body = request(content, 0).partition(b"\r\n\r\n")[2]
        (folder / f"{number}.body").write_bytes(body)
    script = folder / "post.lua"
    script.write_text(
        f"""
local bodies, turn = {{}}, 0
for number = 0, {len(contents) - 1} do
  local file = io.open("{folder}/" .. number .. ".body", "rb")
  bodies[number] = file:read("*a")
  file:close()
end
wrk.method = "POST"
wrk.headers["Content-Type"] = "multipart/form-data; boundary=frontier"
request = function()
  turn = (turn + 1) % {len(contents)}
  return wrk.format(nil, "/predict", nil, bodies[turn])
end
"""
    )
    return script


def throughput(contender: Contender, script: Path, seconds: float) -> float:
    """Images per second with enough clients to keep it busy. Every response must be 200."""
    command = [
        "wrk",
        "-t1",
        f"-c{CLIENTS}",
        f"-d{seconds:g}s",
        "--timeout",
        "30s",
        "-s",
        str(script),
    ]
    before = contender.cpu_seconds()
    with contender.turn():
        found = subprocess.run(
            [*command, f"http://127.0.0.1:{contender.port}/predict"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    if "Non-2xx" in found or "Socket errors" in found:
        raise SystemExit(f"{contender.name}: {found}")
    rate, count = (
        float(re.search(form, found)[1])  # type: ignore[index]
        for form in (r"Requests/sec:\s+([\d.]+)", r"(\d+) requests in")
    )
    contender.cpu_ms.append(1000 * (contender.cpu_seconds() - before) / count)
    return rate


def offline(file: Path, contents: list[bytes], seconds: float) -> float:
    """Images per second of `predict_proba` on a list."""
    predictor = offline_predictor(file)
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        predictor.predict_proba(contents)
        done += len(contents)
    return done / (time.perf_counter() - begun)


_loaded: dict[Path, onsight.Predictor] = {}


def offline_predictor(file: Path) -> onsight.Predictor:
    if file not in _loaded:
        _loaded[file] = onsight.load(file)
    return _loaded[file]


def latency(responses: Responses) -> dict[str, float]:
    p50, p99 = (1000 * responses.percentile(200, share) for share in (0.5, 0.99))
    return {"n": responses.count(200), "p50_ms": p50, "p99_ms": p99, "p99_over_p50": p99 / p50}


def queue_length(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return float(re.search(rb"onsight_queue_images\S* ([\d.]+)", answer.read())[1])  # type: ignore[index]


async def overload(
    port: int, requests: list[bytes], rate: float, seconds: float
) -> dict[str, object]:
    """Ten times its capacity: how fast it refuses requests, with which status, and recovers."""
    lengths = []

    async def watch() -> None:
        while True:
            lengths.append(await asyncio.to_thread(queue_length, port))
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    responses = await open_loop(port, requests, rate, seconds)
    watching.cancel()
    begun = time.perf_counter()
    after = await open_loop(port, requests[:1], 5, 2)
    return {
        "offered_per_second": rate,
        "statuses": {status: len(found) for status, found in responses.seconds.items()},
        "refused_p50_ms": 1000 * responses.percentile(503, 0.5),
        "refused_p99_ms": 1000 * responses.percentile(503, 0.99),
        "accepted_p99_ms": 1000 * responses.percentile(200, 0.99),
        "longest_queue": max(lengths),
        "after_statuses": {status: len(found) for status, found in after.seconds.items()},
        "recovered_in_s": time.perf_counter() - begun,
    }


async def with_slow_clients(port: int, requests: list[bytes], rate: float) -> dict[str, object]:
    """Normal load, first alone, then with clients that send one byte per second."""
    quiet = await open_loop(port, requests, rate, 12)
    heads = (b"POST /predict HTTP/1.1\r\nX: ", requests[0][:400])
    slow = asyncio.create_task(slow_clients(port, [heads[n % 2] for n in range(SLOW_CLIENTS)]))
    mixed = await open_loop(port, requests, rate, 12)
    cut = await slow
    return {
        "slow_clients": SLOW_CLIENTS,
        "cut_off_after_s": [min(cut), max(cut)],
        "quiet": latency(quiet),
        "with_slow_clients": latency(mixed),
        "p99_ratio": mixed.percentile(200, 0.99) / quiet.percentile(200, 0.99),
        "statuses": {status: len(found) for status, found in mixed.seconds.items()},
    }


def under_load(ours: Contender, contents: list[bytes], capacity: float) -> dict[str, object]:
    """At 70% of its capacity, at ten times that, and with slow clients."""
    requests = [request(content, ours.port) for content in contents]
    with ours.turn():
        busy = asyncio.run(open_loop(ours.port, requests, 0.7 * capacity, 15))
        return {
            "at_70_percent": latency(busy),
            "overload": asyncio.run(overload(ours.port, requests, 10 * capacity, 8)),
            "slow": asyncio.run(with_slow_clients(ours.port, requests, 0.4 * capacity)),
        }


def measure(rounds: int, seconds: float, model: str, side: int) -> dict[str, object]:
    if not shutil.which("wrk"):
        raise SystemExit("wrk is needed: apt install wrk")
    contents = make_photos()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = make_file(folder, model, side)
        contenders = start(file, export_file(file, contents))
        try:
            script = wrk_script(folder, contents)
            tasks: dict[str, Callable[[], float]] = {
                each.name: partial(throughput, each, script, seconds)
                for each in contenders.values()
            }
            rates = interleave(
                {"offline": lambda: offline(file, contents, seconds), **tasks}, rounds
            )
            found = figures(rates)
            found["cpu_ms_per_image"] = {
                each.name: statistics.median(each.cpu_ms) for each in contenders.values()
            }
            for name in OURS:
                found[name] = under_load(contenders[name], contents, statistics.median(rates[name]))
        finally:
            for each in contenders.values():
                each.signal(signal.SIGKILL)
                each.process.wait()
    return {"model": model, "side": side, "clients": CLIENTS, **found}


def figures(rates: dict[str, list[float]]) -> dict[str, object]:
    best = [max(pair) for pair in zip(rates["litserve"], rates["fastapi"], strict=True)]
    return {
        "images_per_second": {name: statistics.median(found) for name, found in rates.items()},
        "of_offline": str(paired(rates["onsight"], rates["offline"])),
        "of_the_better_peer": {name: str(paired(rates[name], best)) for name in OURS},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--side", type=int, default=160)
    given = parser.parse_args(arguments)
    print(json.dumps(measure(given.rounds, given.seconds, given.model, given.side)))


if __name__ == "__main__":
    main()
