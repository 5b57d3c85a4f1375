"""A run, from the outside: `train` starts, launches or resumes it and returns what came of it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import Store

from onsight.choice import Choice
from onsight.config import (
    OVERRIDABLE_ON_RESUME,
    Config,
    fields_for_resume,
    make_config,
    refuse_code_from_files,
)
from onsight.config_files import config_layers, read_config_file
from onsight.data.sources.find import name_data, resolve_data
from onsight.data.sources.memory import InMemory
from onsight.errors import ConfigError, OutputError
from onsight.evaluation.results import Results
from onsight.files import refuse_inside_data, user_path
from onsight.hardware.devices import choose_devices, choose_rank_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS, reporting_nondeterministic
from onsight.ranks.launch import launch
from onsight.ranks.meeting import RankInfo, first_says, meet, rank_from_env
from onsight.ranks.world import World, join
from onsight.report.console import Reporter, SilentReporter, headline
from onsight.text import joined, notebook_table
from onsight.training.loggers.loggers import check_installed
from onsight.training.run_folder import (
    CONFIG,
    RunFolder,
    claim_folder,
    has_begun,
    keep_job,
    next_run_folder,
    run_of_job,
    share_folder,
)
from onsight.training.run_session import RunSession
from onsight.training.saving import refuse_taken, restore
from onsight.tune.compute import why_not_graphed
from onsight.tune.plan import choose_threads


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its results as in results.json, and this process's rank."""

    path: Path
    results: Results
    rank: int = 0

    def __repr__(self) -> str:
        return f"<Run {self.path}: {headline(self.results)}>"

    def _repr_html_(self) -> str:
        names = [row["name"] for row in self.results["classes"]]
        facts = {"result": headline(self.results), "classes": joined(names)}
        return notebook_table("Run", {"folder": self.path, **facts, "report": self.report})

    @property
    def accuracy(self) -> float | None:
        """The share of held-out images that were classified correctly."""
        return self.results["accuracy"]

    @property
    def model(self) -> Path:
        """The model file."""
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"


def train(
    data: str | Path | InMemory,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: str | Path | None = None,
    reporter: Reporter | None = None,
    spent: Callable[[], float] | None = None,
    restarted: bool = False,
    **fields: Any,
) -> Run:
    """Train a classifier on images; every field of the config is a keyword.

    data: what the command takes, a pair (images, labels), or a torch Dataset whose items are
    (image, label): paths, Pillow images, or arrays or tensors of uint8 or of floats from 0 to 1.
    `model` may also be a torch.nn.Module, which is then trained in place; spent returns the seconds
    of a budget used so far, by default since this call. restarted: go on with the run in `out` if
    it has begun, with a clock that has run on since then. Raises UserError for what the user can
    fix, Interrupted after a signal, NonFiniteLoss, DiskError.
    """
    called = time.monotonic()
    spent = spent or (lambda: time.monotonic() - called)
    module = fields.get("model")
    if isinstance(module, nn.Module):
        fields["model"] = f"{type(module).__module__}:{type(module).__qualname__}"
    else:
        module = None
    rank_info = rank_from_env()
    store = meet(rank_info) if rank_info else None
    path = user_path(out) if out else None
    begun = _begun_before(path, restarted, rank_info, store)
    if begun and not resume:
        path, resume, recipe, config_file, fields = (
            begun,
            True,
            None,
            None,
            fields_for_resume(fields),
        )
    if resume and path:
        _bring_back(path, fields.get("checkpoints"), rank_info, store)
    config = _resolve_config(path if resume else None, recipe, config_file, fields)
    if config.checkpoints and not resume and (rank_info is None or rank_info.rank == 0):
        refuse_taken(config.checkpoints)
    check_installed(config.loggers)
    devices = _devices(rank_info, config)
    ranks = rank_info.size if rank_info else len(devices.value)
    _refuse_for_ranks(config, ranks)
    if config.cuda_graph == "on" and (why_not := why_not_graphed(config, devices.value[0])):
        raise ConfigError(f"--cuda-graph on is not possible here: {why_not}")
    if len(devices.value) > 1:
        given = {"recipe": recipe, "config_file": config_file and str(config_file), **fields}
        if not isinstance(data, (str, Path)):
            raise _not_sent("images in memory", "save them as files")
        path = path or next_run_folder(str(data))
        given["begun"] = time.monotonic() - spent()
        refuse_inside_data(path, str(data), "../runs/first")
        if module is not None:
            raise _not_sent("a network in memory", "pass it as package.module:callable")
        request = {"data": str(data), "out": str(path), "resume": resume, **given}
        warn = (reporter or Reporter()).warn
        launch(request, len(devices.value), path, config.restarts, warn)
        return Run(path, read_results(path))
    taken = resolve_data(data)
    folder_name = taken if isinstance(taken, str) else taken.kind
    threads = choose_threads(config.threads, rank_info.local_size if rank_info else 1)
    device = Choice(devices.value[0], devices.reason)
    keep_freed_memory()
    with KERNELS[config.kernels](threads.value):
        world = join(rank_info, device.value, config.cuda_graph == "on", store)
        with world.joined():
            chosen = world.broadcast("folder", lambda: str(path or next_run_folder(folder_name)))
            refuse_inside_data(Path(chosen), name_data(taken), "../runs/first")
            reporter = (reporter or Reporter()) if world.is_main else SilentReporter()
            with (
                reporting_nondeterministic(reporter.warn) as unrepeatable,
                _claimed(Path(chosen), resume, world) as folder,
            ):
                session = RunSession(folder, reporter, world, unrepeatable, restarted)
                results = session.run(taken, config, device, threads, spent, module, resume)
    return Run(folder.path, results or read_results(folder.path), world.rank)


def _devices(rank_info: RankInfo | None, config: Config) -> Choice[list[torch.device]]:
    """The device of this rank, or those of the ranks to launch."""
    if rank_info is None:
        return choose_devices(config.device, config.ranks)
    own = choose_rank_device(config.device, rank_info.local_rank, rank_info.local_size)
    return Choice([own.value], own.reason)


def _refuse_for_ranks(config: Config, ranks: int) -> None:
    if config.compile == config.cuda_graph == "on" and ranks > 1:
        raise ConfigError(
            f"--compile on and --cuda-graph on cannot be combined with --ranks {ranks}: leave out "
            "one of the three"
        )


def _begun_before(
    path: Path | None, restarted: bool, rank_info: RankInfo | None, store: Store | None
) -> Path | None:
    """The folder of the run that this job has begun; None if it begins now. All ranks agree."""

    def look() -> str:
        if restarted:
            return str(path) if path and has_begun(path) else ""
        return str(run_of_job(path) or "")

    found = first_says(store, rank_info, "begun", look) if rank_info and store else look()
    return Path(found) if found else None


def _bring_back(
    path: Path, url: str | None, rank_info: RankInfo | None, store: Store | None
) -> None:
    """Fetch the checkpoints of a run whose folder is lost, once for all ranks."""

    def bring() -> str:
        return str(bool(url) and not has_begun(path) and restore(str(url), path))

    if rank_info and store:
        first_says(store, rank_info, "brought back", bring)
    else:
        bring()


def _not_sent(what: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"{what} cannot be sent to other processes: {remedy}, or start your script with torchrun"
    )


def read_results(run: Path) -> Results:
    """The results of a finished run folder."""
    results: Results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


def _resolve_config(
    resumed: Path | None,
    recipe: str | None,
    config_file: str | Path | None,
    fields: dict[str, Any],
) -> Config:
    """Flags override the file, then the recipe, then the defaults; a resumed run keeps its own."""
    layers = config_layers(recipe, config_file, fields)
    asked = make_config(*layers)
    if resumed is None:
        return refuse_code_from_files(asked, fields)
    if not (resumed / CONFIG).exists():
        raise OutputError(f"nothing to resume: {resumed} is not a run folder")
    saved = make_config(read_config_file(resumed / CONFIG))
    named = {name for layer in layers for name in layer} - OVERRIDABLE_ON_RESUME
    if "stream" in (asked.residency, saved.residency):  # crops from a pack differ in bits
        named |= {name for layer in layers for name in layer if name == "residency"}
    changed = sorted(n for n in named if getattr(asked, n) != getattr(saved, n))
    if changed:
        raise ConfigError(
            f"a resumed run keeps its settings, but {', '.join(changed)} would change; "
            "leave that out, or start a new run"
        )
    free = {name: getattr(asked, name) for layer in layers for name in layer if name not in named}
    return refuse_code_from_files(make_config(saved.model_dump(), free), fields)


@contextmanager
def _claimed(path: Path, resume: bool, world: World) -> Iterator[RunFolder]:
    folder = None
    if world.is_main:
        folder = claim_folder(path, resume)
        keep_job(path)
    world.broadcast("claim", str)
    folder = folder or share_folder(path)
    try:
        yield folder
    finally:
        folder.release()
