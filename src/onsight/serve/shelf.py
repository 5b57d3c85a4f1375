"""The models that are served, by name; a file that changes is loaded beside and then swapped in."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from onsight.errors import ModelError, OnsightError
from onsight.inference.predictor import Predictor
from onsight.serve.logs import log
from onsight.serve.metrics import Metrics
from onsight.serve.served import Served
from onsight.serve.yielding import yield_to_clients

_MODEL_FILE = "model.safetensors"
_SUFFIXES = (".onnx", ".safetensors")
_LOOK_SECONDS = 1.0

Load = Callable[[Path], Predictor]
Identity = tuple[int, int, int]  # time of change in ns, bytes, inode


@dataclass
class _Place:
    """Where a model is, and which state of its file was loaded, was refused, and was seen last."""

    path: Path
    loaded: Identity | None = None
    refused: Identity | None = None
    seen: Identity | None = None


class Shelf:
    """Every model of the places named: run folders, model files, or folders of these."""

    def __init__(
        self,
        places: Sequence[Path],
        load: Load,
        decoders: Executor,
        queued: int,
        metrics: Metrics,
    ) -> None:
        self._named = places
        self.load = load
        self._decoders = decoders
        self._queued = queued
        self._metrics = metrics
        self._places: dict[str, _Place] = {}
        self._served: dict[str, Served] = {}
        self._loading = ThreadPoolExecutor(1, "load", yield_to_clients)  # its threads yield as well

    def open(self) -> None:
        """Load every model. Raises ModelError if one that was named itself cannot be used."""
        self._loading.submit(self._open).result()

    def _open(self) -> None:
        for name, path in self._found():
            self._places[name] = _Place(path)
            try:
                self._take(name)
            except OnsightError as error:
                if path in self._named:
                    raise
                self._refuse(name, error)
        if not self._served:
            raise ModelError(f"no model in {' or '.join(map(str, self._named))} can be used")

    @property
    def names(self) -> list[str]:
        """The models, in the order in which they were named."""
        return list(self._served)

    def get(self, name: str | None) -> Served | None:
        """A model, the first one if no name is given, or None."""
        return self._served.get(self.names[0] if name is None else name)

    def devices(self) -> dict[str, str]:
        """The device that each model computes on."""
        runners = {name: served.predictor.runner for name, served in self._served.items()}
        return {name: str(runner.facts.get("device")) for name, runner in runners.items()}

    def states(self) -> dict[str, str]:
        """What is to be said of each model: `ready`, or what is wrong with it."""
        states = {}
        for name, place in self._places.items():
            served = self._served.get(name)
            if served is None:
                states[name] = "cannot be loaded"
            elif not served.batcher.is_alive:
                states[name] = "its worker is being restarted"
            elif place.refused:
                states[name] = "ready, but its new file cannot be used: see the log"
            else:
                states[name] = "ready"
        return states

    async def watch(self) -> None:
        """Take up new and changed files, for as long as the server runs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await loop.run_in_executor(self._loading, self.look)
            except Exception as error:  # a folder that cannot be read now
                log("cannot look for models", error=repr(error))

    def look(self) -> None:
        """Load what has changed and is the same as at the last look, and so is not half written."""
        for name, path in self._found():
            self._places.setdefault(name, _Place(path))
        for name, place in list(self._places.items()):
            identity = _identity(place.path)
            if identity is None or identity in (place.loaded, place.refused):
                continue
            if identity == place.seen:
                try:
                    self._take(name)
                    log("model loaded", model=name)
                except Exception as error:
                    self._refuse(name, error)
            place.seen = identity

    def revive(self) -> None:
        """Restart the workers that have died."""
        for served in self._served.values():
            if not served.batcher.is_alive:
                self._metrics.restarts.labels(served.name).inc()
                log("worker restarted", model=served.name)
                served.batcher.start()

    def close(self) -> None:
        """Let every worker end once it has answered."""
        self._loading.shutdown(wait=False)
        for served in self._served.values():
            served.batcher.close()

    def _take(self, name: str) -> None:
        """Load a model and put it in the place of the former one, which answers what it has."""
        place = self._places[name]
        identity = _identity(place.path)
        served = Served(
            name,
            place.path,
            self.load(place.path),
            self._decoders,
            self._queued,
            self._metrics,
        )
        former, self._served[name] = self._served.get(name), served
        place.loaded, place.refused = identity, None
        if former:
            former.batcher.close()

    def _refuse(self, name: str, error: Exception) -> None:
        place = self._places[name]
        place.refused = _identity(place.path)
        kept = "the one loaded before" if name in self._served else None
        log("model refused", model=name, serving=kept, error=str(error))

    def _found(self) -> Iterator[tuple[str, Path]]:
        """Each model's name and place. Raises ModelError for a place without, or a name twice."""
        found: dict[str, Path] = {}
        for named in self._named:
            for path in _models_at(named):
                name = _name_of(path)
                if found.setdefault(name, path) != path:
                    raise ModelError(f"two models are named {name}: {found[name]} and {path}")
        return iter(found.items())


def _models_at(named: Path) -> list[Path]:
    if not named.exists():
        raise ModelError(f"{named} does not exist")
    if _is_model(named) or not named.is_dir():
        return [named]
    inside = sorted(path for path in named.iterdir() if _is_model(path))
    if not inside:
        raise ModelError(
            f"{named} holds no model: it is neither a run folder nor a folder of run folders, "
            "model files (.safetensors) or exported ones (.onnx)"
        )
    return inside


def _is_model(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    if path.is_dir():
        return (path / _MODEL_FILE).is_file()
    return path.suffix in _SUFFIXES and path.is_file()


def _name_of(path: Path) -> str:
    """A run folder's name, or that of a file without its suffix."""
    if path.name == _MODEL_FILE:
        path = path.resolve().parent
    elif not path.is_dir():
        return path.stem
    return path.resolve().name


def model_file(place: Path) -> Path:
    """The file of a model: the place itself, or the one in a run folder."""
    return place / _MODEL_FILE if place.is_dir() else place


def _identity(place: Path) -> Identity | None:
    """What changes with a model's file; None if there is no file now."""
    try:
        file = model_file(place).stat()
    except OSError:
        return None
    return file.st_mtime_ns, file.st_size, file.st_ino
