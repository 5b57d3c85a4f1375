"""A model in a process of a Ray cluster, which predicts blocks of images."""

import os
import socket
from typing import Any, NamedTuple

from onsight.cluster.tables import NUMBER, PATH, to_table
from onsight.errors import DataError, ModelError, OnsightError
from onsight_explain.cores import limit_cores
from onsight_explain.spinning import choose_spinning


class Work(NamedTuple):
    """What to predict with; first: an image that the command sees, and every machine must."""

    model: str
    device: str
    module: str | None
    cpus: int
    first: bytes
    features: bool
    probabilities: bool


class ImageModel:
    """The callable of Ray Data's actors; loads the model at its first block.

    notes: the actor Notes, which is told of what the user can mend.
    """

    def __init__(self, work: Work, notes: Any) -> None:
        self._work, self._notes = work, notes
        self._predictor: Any = None

    def __call__(self, block: Any) -> Any:
        """The table of predictions for a table of numbers and paths."""
        try:
            self._predictor = self._predictor or self._load()
            paths = [os.fsdecode(path) for path in block[PATH].to_pylist()]
            found = self._predictor.predictions(paths, self._work.features)
            return to_table(block[NUMBER], found, self._work.probabilities)
        except OnsightError as error:
            import ray

            ray.get(self._notes.fail.remote(str(error), error.exit_code))
            raise

    def _load(self) -> Any:
        """The Predictor, which uses the CPUs that Ray gave this process and no more."""
        work = self._work
        self._refuse_unseen()
        choose_spinning()
        limit_cores(work.cpus)
        import torch

        from onsight.inference.predictor import load

        torch.set_num_threads(work.cpus)
        return load(work.model, device=work.device, module=work.module)

    def _refuse_unseen(self) -> None:
        """Raise ModelError, DataError for files that this machine does not see."""
        first = os.fsdecode(self._work.first)
        kinds = {self._work.model: ModelError, first: DataError}
        for path, kind in kinds.items():
            if not os.path.exists(path):
                raise kind(
                    f"the machine {socket.gethostname()} does not see {path}: put it on storage "
                    "that every machine of the cluster sees under the same path"
                )
