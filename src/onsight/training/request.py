"""Reads what a run is asked to do: settings, devices and run folder."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
from onsight.config_files import config_layers, read_config_file, refuse_places
from onsight.data.sources.memory import InMemory
from onsight.errors import ConfigError, OutputError
from onsight.files import user_path
from onsight.hardware.devices import choose_devices, choose_rank_device
from onsight.models.catalog import is_user_spec
from onsight.models.user import import_target
from onsight.randomness import key
from onsight.ranks.meeting import RankInfo, broadcast, meet, rank_from_env
from onsight.report.console import Reporter
from onsight.report.run_files import read_decisions
from onsight.step.optim import check_optimizer
from onsight.training.decisions import is_complete
from onsight.training.loggers.loggers import check_installed
from onsight.training.run_folder import CONFIG, find_run_of_job, has_config
from onsight.training.saving import check_unused, restore_checkpoints
from onsight.tune.compute import why_not_graphed

Data = str | Path | InMemory


@dataclass(frozen=True)
class Request:
    """What a run is asked to do."""

    data: Data  # DATA, as given
    config: Config  # settings, some of which may be left open
    module: nn.Module | None  # user's own network, if it was given as an object
    out: Path | None  # run folder, if it was named
    devices: Choice[list[torch.device]]  # one for each rank to launch, or that of this rank
    elapsed: Callable[[], float]  # returns the seconds since the run began
    resume: bool  # whether to go on with the run in `out`
    restarted: bool  # whether the time while the run was down counts towards its budget
    rank_info: RankInfo | None  # which rank this process is, if a launcher started several
    store: Store | None  # where the ranks meet
    repeated_run: Path | None  # folder of a run whose decisions are repeated
    not_repeated: str  # why the decisions of the config's run are not repeated; empty if they are
    arguments: Mapping[str, Any]  # those of `train`, for ranks in other processes
    reporter: Reporter


def read_request(
    data: Data,
    fields: dict[str, Any],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: str | Path | None = None,
    reporter: Reporter | None = None,
    verbose: bool = False,
    spent: Callable[[], float] | None = None,
    restarted: bool = False,
) -> Request:
    """Read the arguments of `train`, on every rank. Raises UserError for what the user can fix."""
    called = time.monotonic()
    module = fields.get("model")
    if isinstance(module, nn.Module):
        fields["model"] = f"{type(module).__module__}:{type(module).__qualname__}"
    else:
        module = None
    rank_info = rank_from_env()
    store = meet(rank_info) if rank_info else None
    path = user_path(out) if out else None

    def agree(name: str, decide: Callable[[], object]) -> str:
        """Return what the first rank decides, as text, on all ranks alike."""
        if rank_info and store:
            return broadcast(store, rank_info, name, lambda: str(decide()))
        return str(decide())

    begun = agree("begun", lambda: _find_begun(path, restarted) or "")
    if begun and not resume:
        path, resume, recipe, config_file = Path(begun), True, None, None
        fields = fields_for_resume(fields)
    if resume and path:
        agree("brought back", partial(_bring_back, path, fields.get("checkpoints")))
    config = _resolve_config(path if resume else None, recipe, config_file, fields)
    if config.budget and "effort" in fields and not resume:
        raise ConfigError(
            f"--effort {config.effort} and --budget {config.budget} both say how long the run may "
            "take: leave one out"
        )
    if config.checkpoints and not resume and (rank_info is None or rank_info.rank == 0):
        check_unused(config.checkpoints)
    check_installed(config.loggers)
    _check_names(config, module)
    devices = _choose_devices(rank_info, config)
    _refuse_impossible(config, devices.value, rank_info.size if rank_info else len(devices.value))
    repeated_run, not_repeated = None, ""
    if config_file and not resume:
        repeated_run, not_repeated = _find_repeated(Path(config_file), config, fields)
    return Request(
        data=data,
        config=config,
        module=module,
        out=path,
        devices=devices,
        elapsed=spent or (lambda: time.monotonic() - called),
        resume=resume,
        restarted=restarted,
        rank_info=rank_info,
        store=store,
        repeated_run=repeated_run,
        not_repeated=not_repeated,
        arguments={
            "recipe": recipe,
            "config_file": config_file and str(config_file),
            "verbose": verbose,
            **fields,
        },
        reporter=reporter or Reporter(verbose=verbose),
    )


def _check_names(config: Config, module: nn.Module | None) -> None:
    """Raise ConfigError or ModelError for names that would only be looked up after decoding."""
    check_optimizer(config.optimizer)
    if module is None and is_user_spec(config.model):
        torch.manual_seed(key(config.seed) >> 1)  # for a network made by the import itself
        import_target(config.model)


def _choose_devices(rank_info: RankInfo | None, config: Config) -> Choice[list[torch.device]]:
    """Return the device of this rank, or those of the ranks to launch."""
    if rank_info is None:
        return choose_devices(config.device, config.ranks)
    own = choose_rank_device(config.device, rank_info.local_rank, rank_info.local_size)
    return Choice([own.value], own.reason)


def _refuse_impossible(config: Config, devices: list[torch.device], ranks: int) -> None:
    if config.member and not config.weights:
        raise ConfigError("--member is a network of the blend that --weights names: add --weights")
    if config.compile == config.cuda_graph == "on" and ranks > 1:
        raise ConfigError(
            f"--compile on and --cuda-graph on cannot be combined with --ranks {ranks}: leave out "
            "one of the three"
        )
    if config.cuda_graph == "on" and (reason := why_not_graphed(config, devices[0])):
        raise ConfigError(f"--cuda-graph on is not possible here: {reason}")


def _find_repeated(
    config_file: Path, config: Config, fields: Mapping[str, Any]
) -> tuple[Path | None, str]:
    """Return the folder of the config's run if its decisions can be repeated, or why they cannot.

    Both are empty if that run recorded no decision.
    """
    decisions = read_decisions(config_file.parent)
    if not decisions or config_file.name != CONFIG:
        return None, ""
    saved = make_config(read_config_file(config_file))
    names = set(type(config).model_fields) - OVERRIDABLE_ON_RESUME
    changed = sorted(name for name in names if getattr(config, name) != getattr(saved, name))
    if "budget" in fields:
        return None, "a budget is given"
    if changed:
        return None, f"{', '.join(changed)} changed"
    if not is_complete(decisions):
        return None, "that run did not finish"
    return config_file.parent, ""


def _find_begun(path: Path | None, restarted: bool) -> Path | None:
    """Return the folder of the run that this job has begun, if any."""
    if restarted:
        return path if path and has_config(path) else None
    return find_run_of_job(path)


def _bring_back(path: Path, url: str | None) -> bool:
    """Fetch the checkpoints of a run whose folder is lost; return whether there were any."""
    return bool(url) and not has_config(path) and restore_checkpoints(str(url), path)


def _resolve_config(
    resumed: Path | None,
    recipe: str | None,
    config_file: str | Path | None,
    fields: dict[str, Any],
) -> Config:
    """Merge defaults, recipe, file and flags, each overriding those before it.

    A resumed run keeps its settings, except for a few. Raises ConfigError, OutputError.
    """
    layers = config_layers(recipe, config_file, fields)
    given = make_config(*layers)
    if resumed is None:
        return refuse_code_from_files(given, fields)
    if not (resumed / CONFIG).exists():
        raise OutputError(f"nothing to resume: {resumed} is not a run folder")
    read = read_config_file(resumed / CONFIG)
    refuse_places(read, resumed / CONFIG, fields)  # the folder may be somebody else's
    saved = make_config(read)
    named = {name for layer in layers for name in layer} - OVERRIDABLE_ON_RESUME
    if "stream" in (given.residency, saved.residency):  # crops from a pack differ in bits
        named |= {name for layer in layers for name in layer if name == "residency"}
    changed = sorted(name for name in named if getattr(given, name) != getattr(saved, name))
    if changed:
        raise ConfigError(
            f"a resumed run keeps its settings, but {', '.join(changed)} would change; "
            "leave that out, or start a new run"
        )
    changeable = {name for layer in layers for name in layer} - named
    changes = {name: getattr(given, name) for name in changeable}
    return refuse_code_from_files(
        make_config(saved.model_dump(exclude_unset=True), changes), fields
    )
