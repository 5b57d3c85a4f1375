"""A server process under attack, with full counts: memory, files, threads and shutdown."""

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

TESTS = Path(__file__).parents[1] / "tests" / "serve"
sys.path.insert(0, str(TESTS))

from serve_stub import FORM, form, image, running, until  # noqa: E402

from onsight.serve.access import Access  # noqa: E402

POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
MIB = 2**20
LIMIT = 32 * MIB
TOKENS = 10_000


@contextmanager
def served(tmp_path: Path, seconds: float = 0.0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a server with the stub and default limits; yields its process and port."""
    model = tmp_path / "light.onnx"
    model.write_text("1.0")
    command = [sys.executable, str(TESTS / "serve_stub.py"), str(model), str(seconds)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout
            address = re.search(r":(\d+) ", process.stdout.readline())
            assert address
            yield process, int(address[1])
        finally:
            process.kill()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, kind: str = "image/png"
) -> tuple[int, bytes]:
    """Send a request; returns the status and body of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def measure_resources(process: subprocess.Popen[str]) -> tuple[int, int, int, int]:
    """Return a process's resident bytes, their peak, and its numbers of open files and threads."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    numbers = {name: int(text) for name, text in re.findall(r"(\w+):\s+(\d+)", status)}
    files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    return numbers["VmRSS"] * 1024, numbers["VmHWM"] * 1024, files, numbers["Threads"]


def status_of(port: int, *pieces: bytes) -> int:
    """Send raw bytes; returns the status of the response."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass
        answer = connection.recv(65536)
        return int(answer.split(b" ", 2)[1])


def test_large_and_odd_requests_take_little_memory(tmp_path: Path) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    big = image(7)
    big += b"\0" * (LIMIT - len(big))
    million = b"1\r\nx\r\n" * 1_000_000 + b"0\r\n\r\n"
    headers = b"".join(b"X-%d: %s\r\n" % (n, b"y" * 8192) for n in range(200))
    hostile: dict[str, tuple[Callable[[int], int], int]] = {
        "limit - 1": (lambda port: ask(port, "POST", "/predict", big[:-1])[0], 200),
        "limit": (lambda port: ask(port, "POST", "/predict", big)[0], 200),
        "limit + 1": (lambda port: ask(port, "POST", "/predict", big + b"x")[0], 413),
        "chunks": (lambda port: status_of(port, chunked, million), 422),
        "parts": (lambda port: ask(port, "POST", "/predict", form(*[b""] * 10_000), FORM)[0], 413),
        "json": (
            lambda port: ask(port, "POST", "/predict", b"[" * 250_000, "application/json")[0],
            415,
        ),
        "headers": (lambda port: status_of(port, POST, headers, b"\r\n"), 431),
    }
    for name, (send, expected) in hostile.items():
        with served(tmp_path) as (process, port):
            ask(port, "POST", "/predict", image(7))
            before = measure_resources(process)[1]
            assert send(port) == expected, name
            grown = (measure_resources(process)[1] - before) / MIB
            print(f"{name}: {grown:.1f} MiB more at most")
            allowed = 1.25 * LIMIT / MIB if name in ("limit", "limit - 1") else 32
            assert grown < allowed, name
            assert ask(port, "GET", "/health")[0] == 200


def test_twenty_thousand_predictions_leave_nothing_behind(tmp_path: Path) -> None:
    contents = [image(value) for value in range(0, 250, 10)] + [b"bad", b"", image(9)[:40]]
    with served(tmp_path) as (process, port):
        for round_ in range(400):
            batch = random.Random(round_).choices(contents, k=50)
            assert ask(port, "POST", "/predict", form(*batch), FORM)[0] == 200
            if round_ == 40:
                before = measure_resources(process)
        after = measure_resources(process)
        print(f"20,000 images: {(after[0] - before[0]) / MIB:.1f} MiB, files {after[2]}")
        assert after[0] - before[0] < 20 * MIB
        assert after[2] <= before[2] + 1  # a connection may not be closed yet
        assert after[3] == before[3]


def test_a_thousand_mixed_batches(tmp_path: Path) -> None:
    rng = random.Random(0)
    bad = [
        image(5, side=1)[:30],
        b"",
        b"\xff\xd8\xff" + b"\xff\xda" * 500,
        image(9)[:50],
        b"x" * 99,
    ]
    with served(tmp_path) as (_, port):
        solo = {}
        for value in range(0, 250, 25):
            solo[value] = json.loads(ask(port, "POST", "/predict", image(value))[1])
        for _ in range(1000):
            values = rng.choices(list(solo), k=rng.randrange(1, 16))
            place = rng.randrange(len(values) + 1)
            contents = [image(value) for value in values]
            contents.insert(place, rng.choice(bad))
            status, body = ask(port, "POST", "/predict", form(*contents), FORM)
            rows = json.loads(body)["predictions"]
            assert status == 200
            assert rows.pop(place)["problem"]
            for value, row in zip(values, rows, strict=True):
                expected = solo[value]["predictions"][0]["probabilities"]
                for entry, alone in zip(row["probabilities"], expected, strict=True):
                    assert entry["class"] == alone["class"]
                    assert abs(entry["probability"] - alone["probability"]) <= 1e-6


def test_two_hundred_slow_clients_are_disconnected_in_time(tmp_path: Path) -> None:
    starts = (b"", b"GET /he", POST, POST + b"Content-Length: 99\r\n\r\n")
    with served(tmp_path) as (process, port):
        begun = time.monotonic()
        sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        for number, connection in enumerate(sockets):
            connection.sendall(starts[number % len(starts)])
            connection.setblocking(False)
        ended: dict[int, float] = {}
        while len(ended) < 200 and time.monotonic() - begun < 30:
            for number, connection in enumerate(sockets):
                if number in ended:
                    continue
                try:
                    connection.send(b"x") if number % len(starts) else None
                    gone = connection.recv(4096) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    ended[number] = time.monotonic() - begun
            assert ask(port, "POST", "/predict", image(7))[0] == 200
            time.sleep(0.5)
        print(
            f"200 slow clients: disconnected after {min(ended.values()):.1f} to "
            f"{max(ended.values()):.1f} s"
        )
        assert len(ended) == 200
        assert max(ended.values()) <= 12
        for connection in sockets:
            connection.close()
        until(lambda: measure_resources(process)[2] < 40)


@pytest.mark.parametrize("round_", range(50))
def test_a_stop_under_load(tmp_path: Path, round_: int) -> None:
    with served(tmp_path, 0.02) as (process, port):
        statuses: list[int | None] = []

        def client() -> None:
            status: int | None = 200
            while status == 200:
                try:
                    status = ask(port, "POST", "/predict", image(7))[0]
                except ConnectionError:
                    status = None  # the last connection was closed already
                statuses.append(status)

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(random.Random(round_).uniform(0.05, 0.6))
        stopped = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(12) == 128 + signal.SIGTERM
        assert time.monotonic() - stopped <= 10
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 503, None}


def test_a_wrong_token_takes_as_long_wherever_it_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Welch's t between tokens wrong in the first and in the last character, in random order."""
    token = "0123456789abcdef" * 4
    kinds = {"first": "x" + token[1:], "last": token[:-1] + "x"}
    nanoseconds: dict[str, list[int]] = {kind: [] for kind in kinds}
    (tmp_path / "light.onnx").write_text("1.0")
    with running(tmp_path / "light.onnx", access=Access(token=token)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        rng = random.Random(0)
        for _ in range(TOKENS):
            for kind in rng.sample(list(kinds), 2):
                begun = time.perf_counter_ns()
                connection.request(
                    "GET", "/model", headers={"Authorization": f"Bearer {kinds[kind]}"}
                )
                answer = connection.getresponse()
                answer.read()
                nanoseconds[kind].append(time.perf_counter_ns() - begun)
                assert answer.status == 401
        connection.close()
    capsys.readouterr()  # drops the server's log of every request
    first, last = (scipy.stats.trimboth(np.array(times), 0.1) for times in nanoseconds.values())
    t = scipy.stats.ttest_ind(first, last, equal_var=False).statistic
    print(f"t = {t:.2f}, n = {TOKENS:,} each, {np.mean(first) / 1e3:.0f} microseconds per response")
    assert abs(t) < 4.5
