"""A load generator: requests at chosen times over persistent connections, each response timed."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BOUNDARY = "frontier"
MAX_IN_FLIGHT = 800  # requests; the server accepts 1,000 connections

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Responses:
    """The seconds of each response, by status; status 0 means a broken connection."""

    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, status: int, seconds: float) -> None:
        self.seconds.setdefault(status, []).append(seconds)

    def count(self, status: int) -> int:
        return len(self.seconds.get(status, []))

    def percentile(self, status: int, share: float) -> float:
        found = sorted(self.seconds.get(status, [float("nan")]))
        return found[min(len(found) - 1, int(share * len(found)))]


def request(content: bytes, port: int) -> bytes:
    """A complete POST /predict with one image in a form."""
    body = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n".encode()
        + content
        + f"\r\n--{BOUNDARY}--\r\n".encode()
    )
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    return head.encode() + body


class Pool:
    """A pool of persistent connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []

    async def send(self, data: bytes) -> int:
        """Send a request; returns its status, or 0 if the connection broke."""
        if self._free:
            status = await self._send(data, self._free.pop())
            if status:  # otherwise, the server had closed it because it was idle
                return status
        return await self._send(data, None)

    async def _send(self, data: bytes, kept: Connection | None) -> int:
        try:
            pair = kept or await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = pair
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            length = int(lower.partition(b"content-length: ")[2].split(b"\r")[0])
            await reader.readexactly(length)
            if b"connection: close" in lower:
                writer.close()
            else:
                self._free.append(pair)
            return int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError):
            return 0

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def open_loop(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> Responses:
    """Send requests at random times, at this mean rate, without waiting for responses."""
    responses, pool, rng = Responses(), Pool(port), random.Random(0)
    tasks: set[asyncio.Task[None]] = set()
    due = begun = time.perf_counter()

    async def send_one(data: bytes, due: float) -> None:
        status = await pool.send(data)
        responses.add(status, time.perf_counter() - due)

    turn = 0
    while due - begun < seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if len(tasks) < MAX_IN_FLIGHT:
            task = asyncio.create_task(send_one(requests[turn % len(requests)], due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        due += rng.expovariate(rate)
        turn += 1
    await asyncio.gather(*tasks)
    pool.close()
    return responses


async def slow_client(port: int, start: bytes) -> float:
    """Seconds until a client that sends one byte per second is disconnected."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(start)

    async def drip() -> None:
        while True:
            await asyncio.sleep(1)
            writer.write(b"x")

    dripping = asyncio.create_task(drip())
    try:
        while await reader.read(4096):
            pass
    except OSError:
        pass
    dripping.cancel()
    writer.close()
    return time.perf_counter() - begun


async def slow_clients(port: int, starts: Iterable[bytes]) -> list[float]:
    """Seconds until each of many simultaneous slow clients is disconnected."""
    return await asyncio.gather(*(slow_client(port, start) for start in starts))
