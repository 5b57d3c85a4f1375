"""Faults of one image, of the network, of its thread and of its file hurt nobody else."""

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serve_stub import image, load_stub, running, until

from onsight.errors import ModelError
from onsight.serve import registry
from onsight.serve.monitoring import ServerMetrics
from onsight.serve.registry import ModelRegistry

FATAL = 77


@pytest.fixture
def frequent_polls(monkeypatch):
    """A server looks for changed files more often than once a second."""
    monkeypatch.setattr(registry, "_POLL_SECONDS", 0.1)


def hostile():
    """Images that others have crashed on, each with whether it can be used."""
    content = image(100, side=40)
    bomb = bytearray(image(0, kind="BMP"))
    bomb[18:26] = (60_000).to_bytes(4, "little") * 2
    return [
        (image(5, side=1), True),
        (content[: len(content) // 2], False),
        (bytes(bomb), False),
        (b"", False),
        (b"\xff\xd8\xff" + b"\xff\xda" * 500, False),
        (b"II*\x00" + b"\xff" * 40, False),
        (b"%PDF-1.4", False),
    ]


def test_a_hostile_image_among_others_changes_nothing_for_them(server):
    rng = random.Random(1)
    solo = {value: server.predict(image(value))[1][0] for value in range(0, 250, 25)}
    for round_ in range(60):
        bad, is_usable = hostile()[round_ % len(hostile())]
        values = rng.choices(list(solo), k=rng.randrange(1, 12))
        place = rng.randrange(len(values) + 1)
        contents = [image(value) for value in values]
        contents.insert(place, bad)
        status, rows = server.predict(*contents)
        assert status == 200
        assert (rows.pop(place)["problem"] is None) == is_usable
        for value, row in zip(values, rows, strict=True):
            assert row["predicted"] == solo[value]["predicted"]
            for entry, alone in zip(
                row["probabilities"], solo[value]["probabilities"], strict=True
            ):
                assert entry["probability"] == pytest.approx(alone["probability"], abs=1e-6)
        assert server.predict(bad)[0] == (200 if is_usable else 422)
    assert server.batcher.is_alive


def test_an_image_that_the_network_fails_on_fails_alone(model):
    with running(model) as server:
        server.runner.fatal[FATAL] = ValueError("planted")
        contents = [image(value) for value in (1, FATAL, 250)]
        status, rows = server.predict(*contents)
        assert status == 200
        assert [row["predicted"] for row in rows] == ["dark", None, "light"]
        assert rows[1]["problem"] == "the model failed on this image"
        assert server.predict(contents[1])[0] == 500
        assert server.predict(contents[0])[0] == 200
        server.runner.factor = float("nan")
        assert server.predict(contents[0]) == (500, [rows[1]])


def test_a_worker_that_dies_is_restarted_and_what_waited_is_answered(model):
    with running(model) as server:
        server.runner.fatal[FATAL] = SystemExit("planted")
        statuses = []

        def client(value):
            statuses.append((value, server.predict(image(value))[0]))

        for _ in range(3):
            threads = [threading.Thread(target=client, args=(n,)) for n in (1, 2, FATAL, 3, 250)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert {status for value, status in statuses if value != FATAL} == {200}
        assert {status for value, status in statuses if value == FATAL} == {500}
        until(lambda: server.ask("GET", "/ready")[0] == 200)


def test_ready_is_honest_while_a_worker_is_dead(model, monkeypatch):
    with running(model) as server:
        assert server.ask("GET", "/ready")[::2] == (
            200,
            {"ready": True, "models": {"light": "ready"}},
        )
        start, allowed = server.batcher.start, threading.Event()
        monkeypatch.setattr(server.batcher, "start", lambda: allowed.is_set() and start())
        server.runner.fatal[FATAL] = SystemExit("planted")
        server.predict(image(FATAL))
        until(lambda: not server.batcher.is_alive)
        status, _, answer = server.ask("GET", "/ready")
        assert (status, answer["models"]) == (503, {"light": "its worker is being restarted"})
        assert server.is_healthy()
        allowed.set()
        until(lambda: server.ask("GET", "/ready")[0] == 200)
        assert server.predict(image(1))[0] == 200


def test_a_new_file_is_taken_up_without_losing_a_request_and_a_damaged_one_is_not(
    tmp_path, frequent_polls
):
    place = tmp_path / "light.onnx"
    place.write_text("1.0")
    with running(tmp_path, lambda path: load_stub(path, 0.002)) as server:
        answers, ended = [], threading.Event()

        def client():
            while not ended.is_set():
                answers.append(server.predict(image(255)))

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            first = server.registry.get(None)
            place.write_text("damaged")
            until(lambda: "cannot be used" in server.registry.statuses()["light"])
            assert server.registry.get(None) is first
            assert server.ask("GET", "/ready")[0] == 200
            place.write_text("0.0")
            until(lambda: server.registry.get(None) is not first)
            until(lambda: not first.batcher.is_alive)
            (tmp_path / "second.onnx").write_text("2.0")
            until(lambda: server.registry.names == ["light", "second"])
            assert server.ask("GET", "/ready")[2]["models"]["light"] == "ready"
            place.unlink()
            server.registry.reload_changed()
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert {status for status, _ in answers} == {200}
        found = [rows[0]["predicted"] for _, rows in answers]
        assert set(found) == {"light", "dark"}
        assert server.predict(image(255))[1][0]["predicted"] == "dark"


def test_a_request_that_arrives_while_its_model_is_replaced_is_answered(tmp_path, frequent_polls):
    place, content = tmp_path / "light.onnx", image(255)
    place.write_text("1.0")
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    with running(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.settimeout(20)
        slow.sendall(head + b"Content-Length: %d\r\n\r\n" % len(content))
        assert slow.recv(4096).startswith(b"HTTP/1.1 100")  # the model has been chosen
        place.write_text("0.00")
        until(lambda: not server.batcher.is_alive)
        slow.sendall(content)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: not server.batcher.is_alive)


def test_models_that_cannot_be_served_are_named(tmp_path):
    def opened(place):
        with running(place):
            pass

    with pytest.raises(ModelError, match="does not exist"):
        opened(tmp_path / "none")
    with pytest.raises(ModelError, match="holds no model"):
        opened(tmp_path)
    broken = tmp_path / "broken.onnx"
    broken.write_text("damaged")
    with pytest.raises(ModelError, match=r"broken\.onnx is damaged"):
        opened(broken)
    with pytest.raises(ModelError, match="no model in"):
        opened(tmp_path)
    broken.write_text("nan")
    with pytest.raises(ModelError, match=r"broken\.onnx: the model's output is not a number"):
        opened(broken)
    (tmp_path / "whole.onnx").write_text("1")
    with running(tmp_path) as server:
        assert server.registry.names == ["whole"]
        status, _, answer = server.ask("GET", "/ready")
        assert (status, answer["models"]["broken"]) == (503, "cannot be loaded")
    (tmp_path / "whole.safetensors").write_text("1")
    with pytest.raises(ModelError, match="two models are named whole"):
        opened(tmp_path)


def test_a_deleted_model_keeps_no_other_from_being_loaded(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.onnx").write_text("1.0")
    with ThreadPoolExecutor(1) as decoders:
        files = sorted(tmp_path.iterdir())
        registry = ModelRegistry(files, load_stub, decoders, 8, ServerMetrics())
        registry.load_all()
        first = [registry.get(name) for name in registry.names]
        files[0].unlink()
        files[1].write_text("2.00")
        for _ in range(2):  # a file is loaded once it stays the same
            registry.reload_changed()
        assert [registry.get(name) is old for name, old in zip("ab", first, strict=True)] == [1, 0]
        registry.close()


def test_one_model_that_cannot_be_read_stops_no_other(tmp_path):
    def load(path):
        return load_stub(path) if path.stem == "whole" else 1 / 0

    for name in ("broken", "whole"):
        (tmp_path / f"{name}.onnx").write_text("1.0")
    with running(tmp_path, load) as server:
        assert server.registry.statuses() == {"broken": "cannot be loaded", "whole": "ready"}


def test_a_client_that_leaves_costs_nobody_anything(model):
    with running(model, lambda path: load_stub(path, 0.1), queued=8) as server:
        content = image(3)
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        for _ in range(6):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(head % len(content) + content)
        assert server.predict(content)[0] == 200
        until(lambda: server.batcher.length == 0)
        assert np.sum(server.runner.batches) == 8  # with the first, of a blank image
