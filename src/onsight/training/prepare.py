"""What a run trains on and with, once it is placed: pictures, scaling, device, network."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.loader import BatchSource
from onsight.data.normalization import Normalization
from onsight.training.build import make_net, make_normalization, place_pictures
from onsight.training.plan import Plan


@dataclass(frozen=True)
class PreparedRun:
    """pictures: those of the data set where batches come from; module: the user's own, if any."""

    dataset: Dataset
    pictures: BatchSource
    normalization: Normalization
    device: torch.device
    module: nn.Module | None = None

    def draft(self, config: Config) -> nn.Module:
        """A network as the run's, to try things with."""
        return make_net(config, self.dataset, self.device, copy.deepcopy(self.module))


def place(
    config: Config, plan: Plan, dataset: Dataset, module: nn.Module | None = None
) -> PreparedRun:
    """The pictures put where the plan wants them, and measured."""
    pictures = place_pictures(dataset, plan)
    normalization = make_normalization(config, pictures, dataset)
    return PreparedRun(dataset, pictures, normalization, plan["device"].value, module)
