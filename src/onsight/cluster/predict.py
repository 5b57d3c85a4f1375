"""`predict --cluster` and `embed --cluster`: Ray Data sends blocks of paths to copies of the model.

Rows come back as Arrow tables, in the order of the inputs. D features, K classes, n rows.
"""

import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsight.cluster.job import JobState, describe_missing_path, make_ray_error, raise_failure
from onsight.cluster.session import HEAD, Allocation, allocate, list_live_nodes, ray_cluster
from onsight.errors import ConfigError, DataError, ModelError, OnsightError
from onsight.inference.images import Input
from onsight.inference.predict import OutputOptions, predict_files
from onsight.inference.predictor import Prediction, Predictor
from onsight_explain.threads import choose_spinning, limit_cores

_BLOCK_BATCHES = 4  # batches in a block: while one is computed, the next is decoded
_TABLES_AHEAD = 2  # tables of rows requested ahead
_NUMBER, _PATH = "number", "path"  # columns of a block; paths are bytes, as in file systems
_SCALARS = ("predicted", "probability", "problem", "out_of_distribution", "score")
_ARRAYS = ("probabilities", "features")


def predict_on_cluster(
    cluster: str,
    model: Path,
    paths: Sequence[str],
    options: OutputOptions,
    *,
    device: str,
    module: str | None,
    member: str,
) -> None:
    """Write the same output as `predict_files`, computed by a cluster; the arguments are the same.

    cluster: its address, as for ray_cluster; device: the kind of device to use there.

    Raises:
        UserError: An argument is invalid.
        ClusterFailed: A process of the cluster failed.
    """
    if options.resume:
        raise ConfigError("--resume works on one machine only: remove --resume or --cluster")
    options.check(model, paths)
    with ray_cluster(cluster, "ray.data") as ray:
        settings = ModelSettings(os.path.abspath(model), device, module, member, bool(options.top))
        predict_files(
            model,
            paths,
            options,
            device="cpu",
            module=module,
            member=member,
            batches=partial(predict_batches, ray, settings),
        )


def embed_on_cluster(
    cluster: str,
    model: Path,
    paths: Sequence[str],
    out: Path,
    *,
    device: str,
    module: str | None,
    member: str,
    as_json: bool,
) -> None:
    """Write the file that embed_files writes, computed by a cluster; the arguments are the same."""
    from onsight.inference.embed import embed_files  # imports torch, which ImageModel does later

    with ray_cluster(cluster, "ray.data") as ray:
        settings = ModelSettings(os.path.abspath(model), device, module, member)
        embed_files(
            model,
            paths,
            out,
            device="cpu",
            module=module,
            member=member,
            as_json=as_json,
            batches=partial(predict_batches, ray, settings),
        )


class ModelSettings(NamedTuple):
    """What an ImageModel loads and computes."""

    model: str  # an absolute path
    device: str
    module: str | None
    member: str
    probabilities: bool = False  # of all classes
    features: bool = False
    cpus: int = 1
    first_image: bytes = b""  # a path that the command can read, and every machine must


def predict_batches(
    ray: Any,
    settings: ModelSettings,
    predictor: Predictor,
    inputs: Iterable[Input],
    features: bool,
) -> Iterator[list[Prediction]]:
    """Yield lists of predictions, in place of Predictor.batches: one per input, in their order.

    ray: the module, as yielded by ray_cluster. Raises UserError, and OnsightError if Ray fails.
    """
    names, paths = [], []
    for image in inputs:
        names.append(image.name)
        paths.append(_make_absolute_path(image))
    allocation = allocate(list_live_nodes(ray), 0, settings.device)
    settings = settings._replace(
        device=settings.device if allocation.gpus else "cpu",
        features=features,
        cpus=allocation.cpus,
        first_image=paths[0],
    )
    state = ray.remote(JobState).options(num_cpus=0, resources=HEAD).remote()
    stream = ray.remote(RowStream).options(num_cpus=0, resources=HEAD).remote()
    blocks = ray.put(_make_blocks(paths, _BLOCK_BATCHES * predictor.runner.batch_size))
    try:
        ray.get(stream.start.remote(blocks, ImageModel, (settings, state), allocation))
        yield from _read_predictions(names, _read_tables(ray, stream))
    except ray.exceptions.RayError as error:
        raise_failure(ray.get(state.get_failure.remote()))
        raise make_ray_error(error) from error


class RowStream:
    """An actor on the cluster that runs Ray Data; the command takes tables of rows from it."""

    def __init__(self) -> None:
        self._tables: Iterator[Any] = iter(())

    def start(
        self, blocks: list[Any], model: Any, arguments: tuple[Any, ...], allocation: Allocation
    ) -> None:
        """Start mapping blocks, which are tables, to rows."""
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        rows = ray.data.from_arrow(blocks).map_batches(
            model,
            fn_constructor_args=arguments,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=allocation.cpus,
            num_gpus=allocation.gpus or None,
            compute=ActorPoolStrategy(min_size=1, max_size=allocation.processes),
        )
        self._tables = iter(rows.iter_batches(batch_size=None, batch_format="pyarrow"))

    def next(self) -> Any:
        """Return the next table of rows; None after the last."""
        return next(self._tables, None)


class ImageModel:
    """A model in a process of the cluster; Ray Data calls it with blocks of paths."""

    def __init__(self, settings: ModelSettings, state: Any) -> None:
        self._settings = settings
        self._state = state  # the actor JobState, where errors of the user are recorded
        self._predictor: Any = None

    def __call__(self, block: Any) -> Any:
        """Return the table of rows for a block; the model is loaded at the first one."""
        try:
            self._predictor = self._predictor or self._load()
            paths = [os.fsdecode(path) for path in block[_PATH].to_pylist()]
            predictions = self._predictor.predictions(paths, self._settings.features)
            return to_table(block[_NUMBER], predictions, self._settings.probabilities)
        except OnsightError as error:
            import ray

            ray.get(self._state.fail.remote(str(error), error.exit_code))
            raise

    def _load(self) -> Any:
        """Load the model to use the CPUs that Ray gave this process and no more."""
        settings = self._settings
        self._check_visible()
        choose_spinning()
        limit_cores(settings.cpus)
        import torch

        from onsight.inference.predictor import load

        torch.set_num_threads(settings.cpus)
        return load(
            settings.model,
            device=settings.device,
            module=settings.module,
            member=settings.member,
        )

    def _check_visible(self) -> None:
        """Raise ModelError or DataError if the model or first image is not on this machine."""
        first = os.fsdecode(self._settings.first_image)
        kinds = {self._settings.model: ModelError, first: DataError}
        for path, kind in kinds.items():
            if not os.path.exists(path):
                raise kind(describe_missing_path(path, socket.gethostname()))


def to_table(numbers: Any, predictions: Iterable[Prediction], with_probabilities: bool) -> Any:
    """Return predictions as an Arrow table, with the Arrow column of their inputs' numbers."""
    import pyarrow

    rows = list(predictions)
    string, number, floats = pyarrow.string(), pyarrow.float64(), pyarrow.list_(pyarrow.float32())
    types = string, number, string, pyarrow.bool_(), number  # of _SCALARS
    columns = {
        name: pyarrow.array([getattr(row, name) for row in rows], kind)
        for name, kind in zip(_SCALARS, types, strict=True)
    }
    for name in _ARRAYS:
        is_included = with_probabilities or name != "probabilities"
        arrays = [getattr(row, name) if is_included else None for row in rows]
        columns[name] = pyarrow.array(arrays, floats)
    return pyarrow.table({_NUMBER: numbers, **columns})


def from_table(names: Sequence[str], table: Any) -> Iterator[Prediction]:
    """Yield the predictions in a table of rows, for inputs with these names."""
    scalars = table.select(_SCALARS).to_pylist()
    arrays = zip(*(_split_rows(table[name].combine_chunks()) for name in _ARRAYS), strict=True)
    for name, values, (probabilities, features) in zip(names, scalars, arrays, strict=True):
        yield Prediction(name, **values, probabilities=probabilities, features=features)


def _split_rows(column: Any) -> Iterator[Any]:
    """Yield a float32 array (D,) or (K,) for each row, or None for a row without one."""
    is_valid = column.is_valid().to_pylist()
    if not any(is_valid):
        return repeat(None, len(is_valid))
    arrays = iter(column.flatten().to_numpy(zero_copy_only=False).reshape(sum(is_valid), -1))
    return (np.array(next(arrays)) if valid else None for valid in is_valid)


def _make_absolute_path(image: Input) -> bytes:
    """Return the absolute path of an image. Raises ConfigError if it is not a file."""
    if not image.file:
        raise ConfigError(
            f"{image.name} is in an archive, but on a cluster every image must be a separate "
            "file: unpack the archive on storage that all machines share"
        )
    return os.fsencode(os.path.abspath(image.name))


def _make_blocks(paths: list[bytes], size: int) -> list[Any]:
    """Return tables of numbers and paths, with up to `size` rows each."""
    import pyarrow

    columns = {_NUMBER: range(len(paths)), _PATH: pyarrow.array(paths, "large_binary")}
    table = pyarrow.table(columns)
    return [table.slice(start, size) for start in range(0, len(paths), size)]


def _read_tables(ray: Any, stream: Any) -> Iterator[Any]:
    """Yield all tables of rows; the next ones are requested while one is used."""
    pending = deque(stream.next.remote() for _ in range(_TABLES_AHEAD))
    while (table := ray.get(pending.popleft())) is not None:
        pending.append(stream.next.remote())
        yield table


def _read_predictions(names: list[str], tables: Iterable[Any]) -> Iterator[list[Prediction]]:
    """Yield the predictions in tables. Raises OnsightError unless each input has exactly one."""
    done = 0
    for table in tables:
        numbers = table[_NUMBER].to_pylist()
        if numbers != list(range(done, done + len(numbers))):
            raise OnsightError(
                f"Ray lost or repeated rows after the first {done:,}: nothing was kept"
            )
        yield list(from_table(names[done : done + len(numbers)], table))
        done += len(numbers)
    if done != len(names):
        raise OnsightError(f"Ray returned {done:,} of {len(names):,} rows: nothing was kept")
