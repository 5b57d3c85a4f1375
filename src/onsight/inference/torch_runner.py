"""A model file run by torch, with the same forward pass as evaluation.

B images, C channels, H height, W width.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor, nn

from onsight.data.pixels import Pixels
from onsight.evaluation.out_of_distribution import compute_scores, logits_and_scores
from onsight.evaluation.predictions import BATCH_SIZE, evaluation_batch_size
from onsight.features.feature_pass import logits_and_features
from onsight.inference.runner import Outputs, model_facts
from onsight.models.build import build_classifier
from onsight.models.file import BlendFile, ModelFile

_MAX_PARTS = 4  # Python starts the operations of all parts one after the other

T = TypeVar("T")


class TorchRunner:
    """A Runner whose networks are torch modules, on any device; module as for `load`."""

    def __init__(
        self,
        file: ModelFile | BlendFile,
        device: torch.device,
        module: nn.Module | str | None,
    ) -> None:
        self.file = file.without_tensors()
        self.classes = file.classes
        self.format = file.format
        self.classifier = build_classifier(file, device, module)
        self.threshold = file.out_of_distribution.threshold if file.out_of_distribution else None
        size = evaluation_batch_size(device, self.format.model_size)
        # A batch of small images occupies all cores by itself, and a user's network may not be
        # safe to run in several threads.
        is_divided = device.type == "cpu" and size < BATCH_SIZE and module is None
        self._parts = ParallelForward(size) if is_divided else None
        self.batch_size = size * (self._parts.count if self._parts else 1)

    @property
    def facts(self) -> Mapping[str, object]:
        """The network, its device and input, the classes, and its accuracy."""
        return model_facts(self, self.file.model, self.classifier.device, self.file.results)

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """Compute images uint8 (B, H, W, C). Raises ModelError if it has no features."""
        # Those of a pack are memory-mapped and read-only, which torch warns of.
        batch = torch.from_numpy(images if images.flags.writeable else images.copy())
        forward = partial(logits_and_features if features else logits_and_scores, self.classifier)
        parts = self._parts.map(forward, batch) if self._parts else [forward(batch)]
        logits, extra = (torch.cat(column) for column in zip(*parts, strict=True))
        scores = compute_scores(self.classifier, extra) if features else extra
        return Outputs(
            logits.softmax(dim=1).cpu().numpy(),
            None if self.threshold is None else scores.cpu().numpy(),
            extra.cpu().numpy() if features else None,
        )

    def use_all_cores(self) -> None:
        """Divide small batches too, at the price of different rounding errors."""
        if self._parts:
            self._parts.divides_small_batches = True


class ParallelForward:
    """Runs a function on parts of a batch in several threads, which share torch's CPU threads.

    A network of many small operations leaves cores idle in each of them, because all threads wait
    for the slowest; a few parts side by side fill the gaps.
    """

    divides_small_batches = False  # batches of at most `size` images as well

    def __init__(self, size: int) -> None:
        self.size = size  # images in a part
        threads = torch.get_num_threads()
        self.count = min(_MAX_PARTS, threads)
        self._pool = ThreadPoolExecutor(self.count, "compute") if self.count > 1 else None
        if self._pool:
            started = Barrier(self.count)
            threads_each = threads // self.count
            ready = [
                self._pool.submit(_limit_threads, threads_each, started) for _ in range(self.count)
            ]
            for thread in ready:
                thread.result()
            torch.set_num_threads(threads)  # new threads would start with the last value set

    def map(self, function: Callable[[Tensor], T], images: Tensor) -> list[T]:
        """Apply a function to each part of images (B, H, W, C); results are in order."""
        size = self.size
        if self.divides_small_batches:
            size = min(size, -(-len(images) // self.count))
        parts = images.split(size)
        if not self._pool or len(parts) == 1:
            return [function(images)]
        return list(self._pool.map(function, parts))


def _limit_threads(count: int, started: Barrier) -> None:
    """Set how many threads torch uses in the calling thread."""
    torch.get_num_threads()  # the first call in a thread initialises it with the common number
    torch.set_num_threads(count)
    started.wait()  # otherwise one thread could run several of these tasks
