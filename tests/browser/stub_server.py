"""A server with the interface of `onsight serve` and no model, whose faults a test can choose."""

import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from PIL import Image

POLICY = "default-src 'self'; img-src 'self' blob: data:"
CLASSES = ["bag", "boot", "coat", "dress", "shirt", "trouser & <b>belt</b>", "sandal"]
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
Answer = tuple[int, Any, dict[str, str]]


@dataclass
class Stub:
    """What the server does, which tests change, and what it was asked."""

    names: list[str] = field(default_factory=lambda: ["garments"])
    token: str | None = None
    busy: int = 0  # so many predictions are answered by 503 first
    max_bytes: int = 20_000_000
    can: dict[str, bool] = field(default_factory=lambda: {"explain": True, "similar": True})
    fit: str = "stretch"  # how the network is shown an image
    share: float = 0.75  # the probability of the predicted class
    out_of_distribution: bool = False
    seconds: float = 0.0  # a batch takes
    down: bool = False  # connections that were kept open get no answer either
    batches: list[int] = field(default_factory=list)  # images of each request
    at_once: int = 0  # the most requests in work together
    address: str = ""


def card(stub: Stub, name: str) -> dict[str, Any]:
    recalls = [
        {"class": c, "recall": 0.9 - 0.05 * i, "low": 0.8 - 0.05 * i, "high": 0.95 - 0.05 * i}
        for i, c in enumerate(CLASSES)
    ]
    return {
        "name": name,
        "model": "sprint",
        "classes": CLASSES,
        "input": {"height": 28, "width": 28, "channels": 1, "fit": stub.fit}
        | {"background": [255, 255, 255]},
        "accuracy": 0.802,
        "accuracy_low": 0.776,
        "accuracy_high": 0.826,
        "images": 1000,
        "split": "test",
        "folds": None,
        "explanation": [
            "It classified 802 of 1,000 test images correctly; it was not trained on them.",
            "On new images of the same kind, expect 77.6% to 82.6% (95% CI).",
        ],
        "per_class": [row | {"n": 100} for row in recalls],
        "data": "demo: 7,000 images of garments",
        "date": "2026-01-31",
        "limitations": [
            "'coat' and 'shirt' are hardly told apart.",
            "It knows only these 7 classes.",
        ],
        "capabilities": stub.can,
    }


def prediction(stub: Stub, name: str | None, content: bytes, top: int) -> dict[str, Any]:
    known = content.startswith((b"\x89PNG", b"\xff\xd8", b"RIFF"))
    answer = {"name": name, "predicted": None, "probability": None, "probabilities": []}
    if not known:
        return answer | {
            "out_of_distribution": None,
            "problem": "not an image of a format that is read",
        }
    first = len(content) % len(CLASSES)
    others = [c for c in CLASSES if c != CLASSES[first]]
    shares = [stub.share] + [(1 - stub.share) * 2.0**-i for i in range(1, len(CLASSES))]
    pairs = zip([CLASSES[first], *others], shares, strict=True)
    listed = [{"class": c, "probability": p} for c, p in pairs][:top]
    answer |= {"predicted": CLASSES[first], "probability": stub.share, "probabilities": listed}
    return answer | {"out_of_distribution": stub.out_of_distribution, "problem": None}


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def image_bytes(seed: int = 0, size: tuple[int, int] = (48, 36), form: str = "PNG") -> bytes:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def parts(content_type: str, body: bytes) -> list[tuple[str | None, bytes]]:
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = message_from_bytes(head + body)
    pieces: list[Message] = message.get_payload()
    return [(p.get_filename(), p.get_payload(decode=True)) for p in pieces]


class Handler(BaseHTTPRequestHandler):
    """Answers by the table of the contract; `stub` is set for each server."""

    stub: Stub
    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, status: int, content: Any, headers: dict[str, str]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"} | headers
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def _file(self, path: str) -> Answer:
        name = "index.html" if path == "/" else path.removeprefix("/static/")
        content = files("onsight.serve.page").joinpath(name).read_bytes()
        kind = TYPES[name.rsplit(".", 1)[1]]
        return 200, content, {"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-store"}

    def _refused(self) -> bool:
        token = self.stub.token
        return token is not None and self.headers["Authorization"] != f"Bearer {token}"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/" or url.path.startswith("/static/"):
            self._send(*self._file(url.path))
        elif self._refused():
            self._send(401, {"error": "a token is required: Authorization: Bearer TOKEN"}, {})
        elif url.path == "/models":
            names = self.stub.names
            self._send(
                200, {"models": names, "default": names[0], "max_bytes": self.stub.max_bytes}, {}
            )
        else:
            name = parse_qs(url.query).get("model", self.stub.names)[0]
            self._send(200, card(self.stub, name), {})

    def do_POST(self) -> None:
        if self.stub.down:
            self.close_connection = True
            return
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self._refused():
            self._send(401, {"error": "a token is required: Authorization: Bearer TOKEN"}, {})
        elif url.path == "/explain":
            heat = np.zeros((28, 28, 3), np.uint8)
            heat[4:20, 8:24] = (220, 60, 20)
            self._send(200, png(heat), {"Content-Type": "image/png"})
        elif url.path == "/similar":
            image = base64.b64encode(png(np.full((28, 28), 90, np.uint8))).decode()
            match = {
                "label": "coat",
                "similarity": 0.93,
                "image": f"data:image/png;base64,{image}",
            }
            self._send(200, {"similar": [match] * 5}, {})
        else:
            self._predict(query, body)

    def _predict(self, query: dict[str, str], body: bytes) -> None:
        stub = self.stub
        if stub.busy:
            stub.busy -= 1
            self._send(
                503, {"error": "the server is busy: try again in a moment"}, {"Retry-After": "1"}
            )
            return
        if len(body) > stub.max_bytes:
            self._send(413, {"error": "The images are too large together."}, {})
            return
        given = parts(self.headers["Content-Type"], body)
        stub.batches.append(len(given))
        with in_work(stub):
            time.sleep(stub.seconds)
        top = int(query.get("top", 5))
        answers = [prediction(stub, name, content, top) for name, content in given]
        status = 200 if any(a["problem"] is None for a in answers) else 422
        self._send(status, {"model": stub.names[0], "predictions": answers}, {})


_lock = threading.Lock()
_working: dict[int, int] = {}


@contextmanager
def in_work(stub: Stub) -> Iterator[None]:
    with _lock:
        _working[id(stub)] = _working.get(id(stub), 0) + 1
        stub.at_once = max(stub.at_once, _working[id(stub)])
    yield
    with _lock:
        _working[id(stub)] -= 1


class Server(ThreadingHTTPServer):
    """A browser opens several connections at once."""

    daemon_threads = True
    request_queue_size = 64


@contextmanager
def serving(stub: Stub, port: int = 0) -> Iterator[Stub]:
    """The stub at work on a free port of loopback, or on the one named."""
    handler = type("StubHandler", (Handler,), {"stub": stub})
    server = Server(("127.0.0.1", port), handler)
    stub.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield stub
    finally:
        stub.down = True
        server.shutdown()
        server.server_close()
        thread.join()
