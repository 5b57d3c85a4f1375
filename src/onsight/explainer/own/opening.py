"""Opens a run without training it: its images in place, its config with nothing left open."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.hardware.devices import choose_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS
from onsight.report.console import Reporter
from onsight.training.auto.choose_model import with_net_from_scratch
from onsight.training.images.training_data import TrainingData
from onsight.training.plan import choose_threads
from onsight.training.prepare import prepare


@dataclass(frozen=True)
class Opened:
    """A run that could train now. config: with nothing left to choose."""

    config: Config
    data: TrainingData
    device: torch.device


@contextmanager
def opened(data: str, config: Config, reporter: Reporter) -> Iterator[Opened]:
    """The run that `onsight train DATA` would start, as it is within a block.

    Raises UserError for what the user can fix.
    """
    device = choose_device(config.device.partition(",")[0])
    threads = choose_threads(config.threads)
    keep_freed_memory()  # as a run does
    # What is replayed as a graph has no phases to be seen.
    config = config.model_copy(update={"cuda_graph": "off"})
    with KERNELS[config.kernels](threads.value):
        prepared = prepare(with_net_from_scratch(config), data, device, threads, reporter)
        size = min(prepared.config.batch_size, len(prepared.dataset.ids(TRAIN)))
        settled = prepared.config.model_copy(update={"batch_size": size})
        yield Opened(settled, prepared.data, device.value)
