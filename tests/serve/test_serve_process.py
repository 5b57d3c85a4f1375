"""The server as a process: without torch, stopped under load, and started wrongly."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from serve_stub import image

from onsight.cli import main
from onsight.serve.access import Access
from onsight.serve.server import listen

STUB = Path(__file__).with_name("serve_stub.py")
BLOCKED = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "timm", "torchvision", "matplotlib", "tensorboard"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


NEVER_DECODED = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from serve_stub import Access, Limits, listen, load_stub, run
from onsight.serve import registry

def wait(*ignored):
    print("decoding", flush=True)
    threading.Event().wait()

registry.read_image = wait
listener = listen(Access(port=0))
run(listener, [Path(sys.argv[2])], load_stub, Access(), Limits(stop_seconds=0.1))
"""


@pytest.fixture
def process(model):
    """(process, port) of a server that takes 0.2 s a batch, where torch cannot be imported."""
    command = [sys.executable, "-c", BLOCKED, str(STUB), str(model), "0.2"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    greeting = started.stdout.readline()
    port = int(re.fullmatch(r"serving light on http://127.0.0.1:(\d+) \(Ctrl-C.*\n", greeting)[1])
    yield started, port
    started.kill()
    started.communicate()


def ask(port, connection=None):
    """The status of a prediction, or None if the connection was refused before it was sent."""
    connection = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.connect()
    except ConnectionRefusedError:
        return None
    try:
        connection.request("POST", "/predict", image(200), {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except ConnectionError:
        return None  # it came when the last connection had been closed
    finally:
        connection.close()


LONGER_ROUNDS = [pytest.param(round_, marks=pytest.mark.soak) for round_ in (1, 2)]


@pytest.mark.parametrize("round_", [0, *LONGER_ROUNDS])
def test_a_stop_under_load_loses_nothing_that_was_accepted(process, round_):
    started, port = process
    statuses, many = [], threading.Event()

    def client():
        status = 200
        while status == 200:
            status = ask(port)
            statuses.append(status)
            if len(statuses) > 8 + 5 * round_:
                many.set()

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    many.wait(30)
    started.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(30)
    assert started.wait(10) == 128 + signal.SIGTERM
    assert statuses.count(200) > 8
    assert 503 in statuses
    assert set(statuses) <= {200, 503, None}
    lines = started.stderr.read().splitlines()
    logged = [json.loads(line) for line in lines]
    accepted = [event["status"] for event in logged if event["event"] == "request"]
    assert accepted.count(200) == statuses.count(200)
    assert set(accepted) <= {200, 503}
    assert "request failed" not in {event["event"] for event in logged}  # one that was broken off


def test_ctrl_c_ends_quietly(process):
    started, port = process
    assert ask(port) == 200
    started.send_signal(signal.SIGINT)
    assert started.wait(10) == 130
    assert "Traceback" not in started.stderr.read()


def test_the_name_of_a_model_cannot_steer_the_terminal(tmp_path):
    (tmp_path / "m\x1b[31m.onnx").write_text("1.0")
    command = [sys.executable, str(STUB), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        greeting = started.stdout.readline()
        started.kill()
    assert greeting.startswith(rb"serving m\x1b[31m on http://")


def test_a_stop_does_not_wait_for_images_that_are_being_decoded(model):
    command = [sys.executable, "-c", NEVER_DECODED, str(STUB.parent), str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            port = int(re.search(r"127.0.0.1:(\d+)", started.stdout.readline())[1])
            threading.Thread(target=ask, args=(port,), daemon=True).start()
            assert started.stdout.readline() == "decoding\n"
            started.send_signal(signal.SIGTERM)
            assert started.wait(30) == 128 + signal.SIGTERM
        finally:
            started.kill()


def refused(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main(["serve", *map(str, words)])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_what_is_wrong_at_the_start_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *ignored: None)
    assert "no model to serve" in refused(capsys)
    assert "--token-file FILE" in refused(capsys, tmp_path, "--host", "0.0.0.0")
    monkeypatch.setenv("ONSIGHT_TOKEN", "short")
    assert "16 characters" in refused(capsys, tmp_path)
    monkeypatch.delenv("ONSIGHT_TOKEN")
    assert "holds no model" in refused(capsys, tmp_path, "--port", "0")
    assert "at least 1" in refused(capsys, tmp_path, "--queue", "0")
    assert "--module" in refused(capsys, tmp_path, tmp_path, "--module", "a:b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert re.search(
            rf"port {port} .* is in use.*--port 0", refused(capsys, tmp_path, "--port", port)
        )
    with listen(Access(port=0)) as first:  # and still loads its models
        port = first.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refused(capsys, tmp_path, "--port", port)
    assert "cannot listen" in refused(capsys, tmp_path, "--host", "host.invalid", "--open")
    assert "cannot listen" in refused(capsys, tmp_path, "--port", "70000")
