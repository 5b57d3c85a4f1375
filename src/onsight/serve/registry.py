"""The models being served: loading them, classifying with them, reloading files that change."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.decoding_memory import MEMORY, MemoryBusy
from onsight.data.pixels import Pixels
from onsight.errors import ImageError, ModelError
from onsight.files import similar_names
from onsight.inference.images import read_image
from onsight.inference.predictor import Predictor
from onsight.inference.runner import NOT_FINITE
from onsight.serve.batcher import Batcher, InferenceFailed, resolve, yield_to_clients
from onsight.serve.monitoring import ServerMetrics, log

_MODEL_FILE = "model.safetensors"
_SUFFIXES = (".onnx", ".safetensors")
_POLL_SECONDS = 1.0
_RESTART_SECONDS = 0.25  # between checks for dead workers
_MEMORY_SECONDS = 5.0  # time that an image waits for memory to be decoded in

Load = Callable[[Path], Predictor]
FileVersion = tuple[int, int, int]  # modification time in ns, bytes, inode


class Classification(NamedTuple):
    """The result for one image; K classes."""

    probabilities: NDArray[np.float32]  # (K,)
    out_of_distribution: bool | None  # None if the model has no detector


Outcome = Classification | ImageError | InferenceFailed


class ServedModel:
    """One version of a model, its queue and its thread."""

    def __init__(
        self,
        name: str,
        path: Path,
        predictor: Predictor,
        decoders: Executor,  # shared by all models
        max_queued: int,
        metrics: ServerMetrics,
    ) -> None:
        self.name = name
        self.path = path
        self.predictor = predictor
        self.classes = predictor.classes
        self._decoders = decoders
        self._metrics = metrics
        predictor.runner.use_all_cores()
        size = predictor.format
        blank = np.zeros((1, size.height, size.width, size.channels), np.uint8)
        # Fail now if the network cannot run; also warms it up.
        if not isinstance(self._compute(blank)[0], Classification):
            raise ModelError(f"{path}: {NOT_FINITE}")
        self.batcher = Batcher(
            self._compute,
            predictor.runner.batch_size,
            max_queued,
            metrics.batch_images.labels(name).observe,
        )
        metrics.queue.labels(name).set_function(lambda: self.batcher.length)

    async def classify(self, contents: Sequence[bytes]) -> list[Outcome]:
        """Classify encoded images; the outcome of one that fails is its error.

        Raises QueueFull; MemoryBusy if there was no memory for one of them in time.
        """
        loop = asyncio.get_running_loop()
        with self.batcher.admit(len(contents)):
            futures: list[asyncio.Future[Any]] = []
            for content in contents:
                futures.append(loop.create_future())
                self._decoders.submit(self._decode_and_queue, content, futures[-1])
            outcomes = [await future for future in futures]
        for outcome in outcomes:
            if isinstance(outcome, MemoryBusy):
                raise outcome
        failed = sum(isinstance(outcome, Exception) for outcome in outcomes)
        self._metrics.images.labels(self.name, "predicted").inc(len(outcomes) - failed)
        self._metrics.images.labels(self.name, "failed").inc(failed)
        return outcomes

    async def decode(self, content: bytes) -> Pixels:
        """Decode an image to the input format, in a decoder thread. Raises ImageError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, self._decode, content)

    def _decode(self, content: bytes) -> Pixels:
        with MEMORY.held(_MEMORY_SECONDS):
            return read_image(content, self.predictor.format)

    def _decode_and_queue(self, content: bytes, future: "asyncio.Future[Any]") -> None:
        try:
            self.batcher.put(self._decode(content), future)
        except ImageError as error:
            resolve(future, error)
        except Exception:
            resolve(future, ImageError("cannot be decoded"))
            raise

    def _compute(self, images: Pixels) -> list[Classification | InferenceFailed]:
        runner = self.predictor.runner
        outputs = runner.run(images)
        flags = outputs.out_of_distribution(runner.threshold)
        rows = map(Classification, outputs.probabilities, flags)
        pairs = zip(rows, outputs.are_finite, strict=True)
        return [row if is_finite else InferenceFailed() for row, is_finite in pairs]


@dataclass
class WatchedFile:
    """A model file, and the versions of it that were loaded, rejected and seen at the last poll."""

    path: Path
    loaded: FileVersion | None = None
    rejected: FileVersion | None = None
    last_seen: FileVersion | None = None


class ModelRegistry:
    """The models being served, by name."""

    def __init__(
        self,
        paths: Sequence[Path],  # run folders, model files, or folders of these
        load: Load,
        decoders: Executor,
        max_queued: int,
        metrics: ServerMetrics,
    ) -> None:
        self._paths = paths
        self.load = load
        self._decoders = decoders
        self._max_queued = max_queued
        self._metrics = metrics
        self._files: dict[str, WatchedFile] = {}
        self._problems: dict[Path, str] = {}  # with the paths that were given
        self._models: dict[str, ServedModel] = {}
        # The threads that a network starts inherit the priority of the one that loads it.
        self._loader = ThreadPoolExecutor(1, "load", yield_to_clients)

    def load_all(self) -> None:
        """Load every model.

        Raises ModelError if a path that was given itself cannot be loaded, or if nothing can.
        """
        self._loader.submit(self._load_all).result()

    def _load_all(self) -> None:
        for given in self._paths:
            if problem := self._find_models(given):
                raise ModelError(problem)
        for name, file in self._files.items():
            try:
                self._load(name)
            except Exception as error:
                if file.path in self._paths:
                    raise
                self._reject(name, error)
        if not self._models:
            raise ModelError(f"no model in {' or '.join(map(str, self._paths))} can be loaded")

    @property
    def names(self) -> list[str]:
        """The names of the models, in the order in which they were given."""
        return list(self._models)

    def get(self, name: str | None) -> ServedModel | None:
        """Return the model with this name, or the first model for None; None if it is unknown."""
        return self._models.get(self.names[0] if name is None else name)

    def devices(self) -> dict[str, str]:
        """Return the device that each model computes on."""
        runners = {name: model.predictor.runner for name, model in self._models.items()}
        return {name: str(runner.facts.get("device")) for name, runner in runners.items()}

    def statuses(self) -> dict[str, str]:
        """Return each model's status: `ready`, or a description of the problem."""
        statuses = {}
        for name, file in self._files.items():
            model = self._models.get(name)
            if model is None:
                statuses[name] = "cannot be loaded"
            elif not model.batcher.is_alive:
                statuses[name] = "its worker is being restarted"
            elif file.rejected:
                statuses[name] = "ready, but its new file cannot be used: see the log"
            else:
                statuses[name] = "ready"
        return statuses

    async def watch(self) -> None:
        """Reload new and changed files until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await loop.run_in_executor(self._loader, self.reload_changed)
            except Exception as error:  # such as a folder that cannot be read now
                log("cannot look for models", error=repr(error))

    def reload_changed(self) -> None:
        """Load new and changed files.

        A file must be the same on two polls in a row, which rules out half-written ones.
        """
        for given in self._paths:
            problem = self._find_models(given)
            if problem and problem != self._problems.get(given):  # once, not at every poll
                log("cannot look for models", error=problem)
            self._problems[given] = problem
        for name, file in list(self._files.items()):
            version = _version_of(file.path)
            if version is None or version in (file.loaded, file.rejected):
                continue
            if version == file.last_seen:
                try:
                    self._load(name)
                    log("model loaded", model=name)
                except Exception as error:
                    self._reject(name, error)
            file.last_seen = version

    async def restart_dead_workers(self) -> None:
        """Restart compute threads that have died, until cancelled."""
        while True:
            await asyncio.sleep(_RESTART_SECONDS)
            for model in self._models.values():
                if not model.batcher.is_alive:
                    self._metrics.restarts.labels(model.name).inc()
                    log("worker restarted", model=model.name)
                    model.batcher.start()

    def close(self) -> None:
        """Stop every worker once it has answered the requests it accepted."""
        self._loader.shutdown(wait=False)
        for model in self._models.values():
            model.batcher.close()

    def _load(self, name: str) -> None:
        """Load a model and replace the old one, which finishes the requests it has accepted."""
        file = self._files[name]
        version = _version_of(file.path)
        model = ServedModel(
            name,
            file.path,
            self.load(file.path),
            self._decoders,
            self._max_queued,
            self._metrics,
        )
        old, self._models[name] = self._models.get(name), model
        file.loaded, file.rejected = version, None
        if old:
            old.batcher.close()

    def _reject(self, name: str, error: Exception) -> None:
        file = self._files[name]
        file.rejected = _version_of(file.path)
        still_serving = "the version loaded before" if name in self._models else None
        log("model rejected", model=name, serving=still_serving, error=str(error))

    def _find_models(self, given: Path) -> str:
        """Watch the models of a path; return what is wrong with it, or an empty text."""
        problem = ""
        try:
            for path in _models_in(given):
                name = _model_name(path)
                first = self._files.setdefault(name, WatchedFile(path)).path
                if first != path:
                    problem = f"two models are named {name}: {first} and {path}"
        except (ModelError, OSError) as error:
            return str(error)
        return problem


def model_file(path: Path) -> Path:
    """Return the file of a model: the path itself, or the file in a run folder."""
    return path / _MODEL_FILE if path.is_dir() else path


def _models_in(path: Path) -> list[Path]:
    if not path.exists():
        raise ModelError(f"{path} does not exist.{similar_names(path)}")
    if _is_model(path) or not path.is_dir():
        return [path]
    models = sorted(entry for entry in path.iterdir() if _is_model(entry))
    if not models:
        raise ModelError(
            f"{path} holds no model: it is neither a run folder nor a folder of run folders, "
            "model files (.safetensors) or exported models (.onnx)"
        )
    return models


def _is_model(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    if path.is_dir():
        return (path / _MODEL_FILE).is_file()
    return path.suffix in _SUFFIXES and path.is_file()


def _model_name(path: Path) -> str:
    """Return the name of a run folder, or of a file without its suffix."""
    if path.name == _MODEL_FILE:
        path = path.resolve().parent
    elif not path.is_dir():
        return path.stem
    return path.resolve().name


def _version_of(path: Path) -> FileVersion | None:
    """Return a value that changes with a model's file, or None if there is no file."""
    try:
        facts = model_file(path).stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
