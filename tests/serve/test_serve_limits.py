"""Requests that take too much or never end: refused to the byte, closed in time, nobody hurt."""

import socket
import threading
import time

import pytest
from serve_stub import FORM, form, image, load_stub, running, until

from onsight.data.decoding_memory import MEMORY
from onsight.serve import registry

LIMIT = 100_000
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


def send(server, *pieces, wait=20.0):
    """Everything that the server answers to raw bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # refused before all was sent
        found = b""
        try:
            while data := connection.recv(65536):
                found += data
        except ConnectionResetError:
            pass
        return found


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(("size", "status"), [(LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)])
def test_a_body_may_have_so_many_bytes_and_not_one_more(server, size, status):
    content = image(7)
    padded = content + b"\0" * (size - len(content))
    assert server.ask("POST", "/predict", padded, content_type="image/png")[0] == status
    inside = form(content)
    body = form(content + b"\0" * (size - len(inside)))
    assert len(body) == size
    assert server.ask("POST", "/predict", body, content_type=FORM)[0] == status
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (size // 4, padded[n * (size // 4) :][: size // 4]) for n in range(4)
    )
    rest = padded[4 * (size // 4) :]
    chunks += (b"%x\r\n%s\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n"
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert status_of(send(server, head, chunks)) == status
    assert server.is_healthy()


def test_a_length_that_lies_harms_nobody(server):
    content = image(7)
    longer = POST + b"Content-Length: %d\r\n\r\n" % (len(content) - 5) + content
    assert send(server, longer).rpartition(b"HTTP/1.1 ")[2][:3] == b"400"  # of what is left over
    declared = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n"
    assert status_of(send(server, declared % (LIMIT + 1))) == 413
    for length in (b"-1", b"1e3", b"1, 2", b"99999999999999999999", b"\xb2"):
        assert status_of(send(server, POST + b"Content-Length: " + length + b"\r\n\r\n")) == 400
    both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert status_of(send(server, POST + both)) == 400
    assert server.is_healthy()


def test_a_hundred_thousand_chunks_of_a_byte(server):
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = image(7)
    filled = body + b"\0" * (LIMIT - len(body))
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in filled) + b"0\r\n\r\n"
    assert status_of(send(server, head, chunks)) == 200
    assert status_of(send(server, head, b"1\r\nx\r\n" * (LIMIT + 1) + b"0\r\n\r\n")) == 413
    assert server.is_healthy()


def test_parts_are_counted_while_they_come(server):
    content = image(7)
    assert server.predict(*[content] * 64)[0] == 200
    assert server.predict(*[content] * 65)[0] == 413
    with running_small(server) as small:
        assert small.predict(*[b""] * 10_000)[0] == 413
        assert small.is_healthy()
    head = b'--frontier\r\nContent-Disposition: form-data; name="images"\r\n'
    for headers in (b"X: y\r\n" * 2000, b"X: " + b"y" * 60_000 + b"\r\n"):
        answer = server.ask("POST", "/predict", head + headers + b"\r\n", content_type=FORM)
        assert answer[0] == 400
    assert server.is_healthy()


def running_small(server):
    return running(server.registry.get(None).path)


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: %s\r\n" % (n, b"y" * 8192) for n in range(200)),
        b"X: " + b"y" * 200_000 + b"\r\n",
        b"X: y\r\n" * 20_000,
    ],
)
def test_headers_have_a_bound(server, head):
    assert status_of(send(server, POST, head, b"\r\n")) == 431
    trailers = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + head + b"\r\n"
    assert b"200 OK" not in send(server, POST + trailers)
    target = b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert status_of(send(server, target)) == 431
    assert server.is_healthy()


@pytest.mark.parametrize(
    "line",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"\r\n\r\nx",
    ],
)
def test_what_is_not_http_is_refused(server, line):
    assert status_of(send(server, line + b"\r\n" * 4)) == 400
    assert server.is_healthy()


def test_slow_clients_are_cut_off_while_others_are_answered(model):
    starts = {
        "silent": b"",
        "line": b"POST /pre",
        "headers": POST + b"X-Slow: ",
        "body": POST + b"Content-Length: 1000\r\n\r\n",
        "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n",
        "refused": POST.replace(b"predict", b"nothing") + b"Content-Length: 1000\r\n\r\n",
        "form": POST
        + b"Content-Type: %s\r\nContent-Length: 999\r\n\r\n" % FORM.encode()
        + form(b"")[:-20],
        "second": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        "empty lines": b"\r\n",
    }
    drips = {"silent": b"", "chunks": b"1\r\nx\r\n", "empty lines": b"\r\n"}
    with running(model, receive_seconds=1.0, idle_seconds=0.5) as server:
        ended = {}

        def drip(name, start):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                began = time.monotonic()
                connection.sendall(start)
                connection.settimeout(0.1)
                answer = b""
                while time.monotonic() - began < 15:
                    try:
                        connection.sendall(drips.get(name, b"x"))
                        data = connection.recv(4096)
                        answer += data
                        if not data:
                            break
                    except TimeoutError:
                        continue
                    except OSError:
                        break
                ended[name] = time.monotonic() - began, answer

        threads = [threading.Thread(target=drip, args=item) for item in starts.items()]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert server.predict(image(9))[0] == 200
            time.sleep(0.05)
        assert ended.keys() == starts.keys()
        assert all(seconds < 10 for seconds, _ in ended.values()), ended
        for name in ("silent", "line", "headers", "body", "chunks", "form", "empty lines"):
            assert status_of(ended[name][1]) == 408, name
        until(lambda: not server.server.server_state.connections)


def test_a_resting_connection_is_closed_and_a_used_one_kept(model):
    with running(model, idle_seconds=1.0) as server:
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert send(server, get * 3).count(b"200 OK") == 3
        refused = POST + b"Content-Type: text/html\r\nContent-Length: 9\r\n\r\n"
        assert send(server, refused, b"123456789").count(b"HTTP/1.1 415") == 1


def test_there_are_only_so_many_connections(model):
    with running(model, connections=5) as server:
        kept = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        time.sleep(0.2)
        answer = send(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (not answer) or status_of(answer) == 503
        for connection in kept:
            connection.close()
        time.sleep(0.2)
        assert server.is_healthy()


def test_a_full_queue_refuses_at_once_and_nothing_else_goes_wrong(model):
    with running(model, lambda path: load_stub(path, 0.05), queued=12) as server:
        statuses, longest = [], [0]

        def client():
            for _ in range(3):
                status, headers, _ = server.ask(
                    "POST", "/predict", image(9), content_type="image/png"
                )
                longest[0] = max(longest[0], server.batcher.length)
                statuses.append(status)
                assert status == 200 or headers["Retry-After"] == "1"

        threads = [threading.Thread(target=client) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503}
        assert len(statuses) == 120
        assert longest[0] <= 12
        assert server.predict(image(9))[0] == 200
        assert server.batcher.length == 0
        assert server.predict(*[image(9)] * 13)[0] == 503


def test_bodies_together_have_a_bound(model):
    with running(model, body_bytes=50_000, held_bytes=80_000) as server:
        waiting = socket.create_connection(("127.0.0.1", server.port))
        waiting.sendall(POST + b"Content-Length: 50000\r\n\r\n" + b"x" * 49_000)
        time.sleep(0.3)
        assert server.ask("POST", "/predict", b"x" * 49_000, content_type="image/png")[0] == 503
        waiting.close()
        time.sleep(0.3)
        assert server.ask("POST", "/predict", b"x" * 49_000, content_type="image/png")[0] == 422


def test_an_image_without_memory_to_decode_it_gets_503_and_one_that_never_fits_a_problem(
    server, monkeypatch
):
    for name in ("_total_bytes", "_shared_bytes"):
        monkeypatch.setattr(MEMORY, name, 10_000)
    monkeypatch.setattr(registry, "_MEMORY_SECONDS", 0.01)
    with MEMORY.held():
        MEMORY.reserve(9_900)
        status, headers, _ = server.ask("POST", "/predict", image(7), content_type="image/png")
        assert (status, headers["retry-after"]) == (503, "1")
    status, rows = server.predict(image(7), image(7, side=60))
    assert status == 200
    assert rows[0]["problem"] is None
    assert "ONSIGHT_DECODE_GIGABYTES" in rows[1]["problem"]
