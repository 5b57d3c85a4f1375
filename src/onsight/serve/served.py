"""One model that is served: it decodes in the common threads and computes in its own."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError
from onsight.inference.images import read_image
from onsight.inference.predictor import Predictor
from onsight.serve.batcher import Batcher, Failed, give
from onsight.serve.metrics import Metrics


class Classified(NamedTuple):
    """The probabilities (K,) of an image, and whether it is unlike anything seen in training."""

    probabilities: NDArray[np.float32]
    out_of_distribution: bool | None


Outcome = Classified | ImageError | Failed


class Served:
    """A model with its queue. place: where it was loaded from; decoders: the common threads.

    K classes.
    """

    def __init__(
        self,
        name: str,
        place: Path,
        predictor: Predictor,
        decoders: Executor,
        queued: int,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self.place = place
        self.predictor = predictor
        self.classes = predictor.classes
        self._decoders = decoders
        self._metrics = metrics
        predictor.runner.use_all_cores()
        self._compute(self._blank())  # a network that cannot run is found now, and is warm later
        self.batcher = Batcher(
            self._compute, predictor.runner.batch_size, queued, metrics.batch.labels(name).observe
        )
        metrics.watch_queue(name, lambda: self.batcher.length)

    async def outcomes(self, contents: Sequence[bytes]) -> list[Outcome]:
        """What each image is, or what is wrong with it. Raises QueueFull."""
        loop = asyncio.get_running_loop()
        with self.batcher.room(len(contents)):
            answers: list[asyncio.Future[Any]] = []
            for content in contents:
                answers.append(loop.create_future())
                self._decoders.submit(self._decode, content, answers[-1])
            found = [await answer for answer in answers]
        refused = sum(isinstance(one, Exception) for one in found)
        self._metrics.images.labels(self.name, "used").inc(len(found) - refused)
        self._metrics.images.labels(self.name, "refused").inc(refused)
        return found

    async def pixels(self, content: bytes) -> Pixels:
        """An image as the network takes it, decoded in the threads. Raises ImageError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._decoders, read_image, content, self.predictor.format
        )

    def _decode(self, content: bytes, answer: "asyncio.Future[Any]") -> None:
        try:
            self.batcher.put(read_image(content, self.predictor.format), answer)
        except ImageError as error:
            give(answer, error)
        except Exception:
            give(answer, ImageError("cannot be decoded"))
            raise

    def _compute(self, images: Pixels) -> list[Classified]:
        runner = self.predictor.runner
        found = runner.run(images)
        return list(
            map(Classified, found.probabilities, found.out_of_distribution(runner.threshold))
        )

    def _blank(self) -> Pixels:
        size = self.predictor.format
        return np.zeros((1, size.height, size.width, size.channels), np.uint8)
