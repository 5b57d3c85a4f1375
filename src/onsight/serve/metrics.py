"""What the server counts, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counts of one server; every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "onsight_requests",
            "Requests by route and status.",
            ["route", "code"],
            registry=registry,
        )
        self.seconds = Histogram(
            "onsight_request_seconds",
            "Seconds from a request's headers to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.images = Counter(
            "onsight_images",
            "Images by model and outcome: used or refused.",
            ["model", "outcome"],
            registry=registry,
        )
        self.batch = Histogram(
            "onsight_batch_images",
            "Images computed at once.",
            ["model"],
            buckets=_SIZES,
            registry=registry,
        )
        self.restarts = Counter(
            "onsight_worker_restarts", "Times a worker had died.", ["model"], registry=registry
        )
        self._queue = Gauge(
            "onsight_queue_images",
            "Images that wait or are in work.",
            ["model"],
            registry=registry,
        )

    def watch_queue(self, model: str, length: Callable[[], int]) -> None:
        """Ask for the length of a model's queue whenever the metrics are read."""
        self._queue.labels(model).set_function(length)

    def refused(self, status: int) -> None:
        """Count what was refused before it became a request."""
        self.requests.labels("(none)", status).inc()

    def text(self) -> bytes:
        """All of it, as a scraper reads it."""
        return generate_latest(self._registry)
