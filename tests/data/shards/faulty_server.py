"""A small HTTP server on loopback with ranges, ETags and planted faults."""

import gzip
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


@contextmanager
def serving(files):
    """files: name to bytes. Yields url, requests (a count by method and name), faults.

    faults: (method, name) to a list of what happens to the next requests, first come first served:
    a status, `cut` (the connection ends halfway), `gzip` (compressed without being asked),
    `endless` (50 MB more), `drip` (a byte at a time), `silent` (for a second), or None (nothing).
    """
    state = SimpleNamespace(files=files, requests=Counter(), faults={}, ranges=True, etags=True)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self._answer()

        def do_GET(self):
            self._answer()

        def _answer(self):
            name = self.path.lstrip("/")
            state.requests[self.command, name] += 1
            planted = state.faults.get((self.command, name), [])
            fault = planted.pop(0) if planted else None
            if fault == "silent":
                time.sleep(1)
            content = state.files.get(name)
            if isinstance(fault, int) or content is None:
                self.send_response(fault if isinstance(fault, int) else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if fault == "endless":
                found = None  # as if it had no ranges
            etag = sha256(content).hexdigest()
            if found and state.ranges:
                content = content[int(found[1]) : int(found[2]) + 1]
            self.send_response(206 if found and state.ranges else 200)
            if fault == "gzip":
                content = gzip.compress(content)
                self.send_header("Content-Encoding", "gzip")
            if fault != "endless":
                self.send_header("Content-Length", str(len(content)))
            if state.etags:
                self.send_header("ETag", etag)
            self.end_headers()
            if self.command == "HEAD":
                return
            if fault == "cut":
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            if fault == "drip":
                for number in range(len(content)):
                    self.wfile.write(content[number : number + 1])
                    time.sleep(0.02)
                return
            self.wfile.write(content)
            if fault == "endless":
                self.wfile.write(bytes(50_000_000))
                state.requests["to the end", name] += 1
                self.close_connection = True

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *args: None  # readers may hang up
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
