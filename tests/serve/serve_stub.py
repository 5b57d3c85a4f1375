"""A network that is a formula, and a real server with it on a free port of this machine.

It loads no torch, so that it can also be run as a program: `python stub.py FOLDER`.
"""

import http.client
import io
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from onsight.data.fit import ImageFormat
from onsight.errors import ModelError
from onsight.inference.predictor import Predictor
from onsight.inference.runner import Outputs
from onsight.serve.access import Access, Limits
from onsight.serve.monitoring import ServerMetrics
from onsight.serve.registry import ModelRegistry
from onsight.serve.server import listen, make_server, run

BOUNDARY = "frontier"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


class StubRunner:
    """Classes by brightness; the model's file holds what it multiplies it by.

    Images whose first pixel is in `fatal` make it raise; seconds: of each batch.
    """

    classes = ("dark", "medium", "light")
    batch_size = 8
    threshold = None
    facts = {"model": "stub", "device": "cpu"}  # noqa: RUF012

    def __init__(self, factor=1.0, seconds=0.0):
        self.format = ImageFormat(6, 6, 1)
        self.factor = factor
        self.seconds = seconds
        self.fatal = {}
        self.batches = []

    def use_all_cores(self):
        pass

    def run(self, images, features=False):
        time.sleep(self.seconds)
        self.batches.append(len(images))
        for first in images[:, 0, 0, 0]:
            if int(first) in self.fatal:
                raise self.fatal[int(first)]
        light = images.mean((1, 2, 3)) / 255 * self.factor
        logits = np.stack([1 - light, np.full_like(light, 0.5), light], 1) * 4
        shares = np.exp(logits)
        return Outputs((shares / shares.sum(1, keepdims=True)).astype(np.float32))


def load_stub(path, seconds=0.0):
    """A model whose file holds a number, and nothing else."""
    try:
        factor = float(Path(path).read_text())
    except ValueError as error:
        raise ModelError(f"{path} is damaged") from error
    return Predictor(StubRunner(factor, seconds))


class Running:
    """A server in a thread, and a client of it."""

    def __init__(self, server, registry, port):
        self.server, self.registry, self.port = server, registry, port
        self.runner = registry.get(None).predictor.runner
        self.batcher = registry.get(None).batcher

    def ask(self, method, path, body=None, **headers):
        """(status, headers, body) of a request; a JSON body is parsed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            content = answer.read()
            if content and "json" in answer.headers.get("content-type", ""):
                content = json.loads(content)
            return answer.status, answer.headers, content
        finally:
            connection.close()

    def predict(self, *contents, query=""):
        """(status, rows) of images in a form."""
        status, _, answer = self.ask("POST", f"/predict{query}", form(*contents), content_type=FORM)
        return status, answer.get("predictions", answer)

    def is_healthy(self):
        return self.ask("GET", "/health")[0] == 200


@contextmanager
def running(place, load=load_stub, access=None, **limits):
    """A server of the models at a place, which is stopped at the end."""
    access = replace(access or Access(), port=0)
    limits = replace(Limits(), **limits)
    metrics = ServerMetrics()
    with ThreadPoolExecutor(2) as decoders:
        registry = ModelRegistry([Path(place)], load, decoders, limits.queued, metrics)
        registry.load_all()
        server = make_server(registry, access, limits, metrics)
        listener = listen(replace(access, host="127.0.0.1"))  # which the server closes
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            until(lambda: server.started)
            yield Running(server, registry, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def form(*contents, name="images", file="a.png"):
    """A body of multipart/form-data."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
        "Content-Type: image/png\r\n\r\n".encode()
        + content
        + b"\r\n"
        for content in contents
    ]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def image(value, side=6, kind="PNG"):
    """An encoded image of one brightness, its first pixel as given."""
    data = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(data, kind)
    return data.getvalue()


def until(condition, seconds=20):
    """Wait for a condition, and fail if it does not come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


if __name__ == "__main__":
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    run(
        listen(Access(port=0)),
        [Path(sys.argv[1])],
        lambda path: load_stub(path, seconds),
        Access(),
        Limits(),
    )
