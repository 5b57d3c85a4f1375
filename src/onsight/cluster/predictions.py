"""Predictions by Ray Data: each process of a cluster loads the model once and takes blocks."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onsight.cluster.image_model import ImageModel, Work
from onsight.cluster.notes import Notes, ended_by_ray, raise_failure
from onsight.cluster.row_stream import RowStream
from onsight.cluster.session import HEAD
from onsight.cluster.shares import live_nodes, share_among
from onsight.cluster.tables import NUMBER, PATH, from_table
from onsight.errors import ConfigError, OnsightError
from onsight.inference.images import Input
from onsight.inference.predictor import Prediction, Predictor

_BATCHES = 4  # of the model in a block: while one is computed, the next is decoded
_AHEAD = 2  # tables of rows on their way to the command


class ClusterPredictions:
    """What predicts in place of Predictor.batches; rows come in the order of the inputs.

    ray: as ray_cluster yields it; with_probabilities: whether rows need those of all classes.
    """

    def __init__(
        self,
        ray: Any,
        model: Path,
        device: str,
        module: str | None,
        with_probabilities: bool = False,
    ) -> None:
        self._ray = ray
        self._model = os.path.abspath(model)
        self._device, self._module = device, module
        self._with_probabilities = with_probabilities

    def batches(
        self, predictor: Predictor, inputs: Iterable[Input], features: bool
    ) -> Iterator[list[Prediction]]:
        """One Prediction per input, in lists. Raises UserError; OnsightError if Ray fails."""
        names, places = [], []
        for one in inputs:
            names.append(one.name)
            places.append(_place(one))
        ray = self._ray
        share = share_among(live_nodes(ray), 0, self._device)
        device = self._device if share.gpus else "cpu"
        work = Work(
            self._model,
            device,
            self._module,
            share.cpus,
            places[0],
            features,
            self._with_probabilities,
        )
        notes = ray.remote(Notes).options(num_cpus=0, resources=HEAD).remote()
        stream = ray.remote(RowStream).options(num_cpus=0, resources=HEAD).remote()
        blocks = ray.put(_blocks(places, _BATCHES * predictor.runner.batch_size))
        try:
            ray.get(stream.begin.remote(blocks, ImageModel, (work, notes), share))
            yield from _predictions(names, _tables(ray, stream))
        except ray.exceptions.RayError as error:
            raise_failure(ray.get(notes.why_failed.remote()))
            raise ended_by_ray(error) from error


def _place(one: Input) -> bytes:
    """Where other machines find an image. Raises ConfigError if it is no file."""
    if not one.file:
        raise ConfigError(
            f"{one.name} is in an archive, but on a cluster every image must be a file of its "
            "own: unpack the archive on storage that all machines see"
        )
    return os.fsencode(os.path.abspath(one.name))


def _blocks(places: list[bytes], size: int) -> list[Any]:
    """Tables of so many numbers and paths."""
    import pyarrow

    table = pyarrow.table({NUMBER: range(len(places)), PATH: pyarrow.array(places, "large_binary")})
    return [table.slice(start, size) for start in range(0, len(places), size)]


def _tables(ray: Any, stream: Any) -> Iterator[Any]:
    """All tables of rows, the next ones under way while one is used."""
    coming = deque(stream.next.remote() for _ in range(_AHEAD))
    while (table := ray.get(coming.popleft())) is not None:
        coming.append(stream.next.remote())
        yield table


def _predictions(names: list[str], tables: Iterable[Any]) -> Iterator[list[Prediction]]:
    """The predictions of all inputs. Raises OnsightError unless each has exactly one."""
    done = 0
    for table in tables:
        numbers = table[NUMBER].to_pylist()
        if numbers != list(range(done, done + len(numbers))):
            raise OnsightError(f"Ray lost or repeated rows after the {done:,}th: nothing was kept")
        yield list(from_table(names[done : done + len(numbers)], table))
        done += len(numbers)
    if done != len(names):
        raise OnsightError(f"Ray gave {done:,} of {len(names):,} rows: nothing was kept")
