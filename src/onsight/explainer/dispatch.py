"""Chooses the explanation by what `onsight explain` was given: a script, a run or DATA."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console

from onsight.config import Config, config_layers, make_config, without_foreign_code
from onsight.errors import ConfigError
from onsight.files import check_output

SECONDS = 60.0  # for the whole command, about
QUICK_SECONDS = 30.0

F = TypeVar("F")


@dataclass(frozen=True)
class Explained(Generic[F]):
    """What was found out, in full in `found`."""

    found: F
    to_facts: Callable[[F], dict[str, Any]]
    print_to: Callable[[F, Console], None]

    def facts(self) -> dict[str, Any]:
        """Plain values; at least `verdict`."""
        return self.to_facts(self.found)

    def show(self, console: Console | None = None) -> None:
        """Print it as `onsight explain` does."""
        self.print_to(self.found, console or Console(highlight=False, markup=False))


def explain(
    subject: str | Path,
    script_args: Sequence[str] = (),
    *,
    what_ifs: bool = True,
    seconds: float = SECONDS,
    limit_seconds: float = 120.0,
    on_twin: bool = False,
    write: Path | None = None,
    compare: str | None = None,
    batch_sizes: str = "",
    recipe: str | None = None,
    config: Path | None = None,
    trace_file: Path | None = None,
    plot_file: Path | None = None,
    **fields: Any,
) -> Explained[Any]:
    """Find out what slows down a run or any training script, and what would help.

    subject: a run folder, DATA, or a script, which takes script_args; what_ifs: try out changes;
    seconds: for all of it, about; limit_seconds: until a script trains; on_twin: run the script on
    a simulated GPU; write: where the script goes with the changes that won; compare: devices such
    as "cpu,cuda:0", or "all", at these batch_sizes, such as "4,32"; trace_file: to write a timeline
    into; plot_file: a PNG file to draw the comparison into; recipe, config, fields: those of the
    run, as for `train`. Raises UserError for what the caller can fix.
    """
    if seconds <= 0:
        raise ConfigError("--seconds must be more than 0")
    if plot_file:
        from onsight.explainer.compare.draw import check_plot_name  # loads matplotlib

        check_plot_name(plot_file)
        compare = compare or "all"
    name, is_comparison = str(subject), compare is not None or bool(batch_sizes)
    if name.endswith(".ipynb"):
        raise ConfigError(
            f"{name} is a notebook: make a script of it (`jupyter nbconvert --to script {name}`) "
            "and explain that"
        )
    if write and (on_twin or not what_ifs or not name.endswith(".py")):
        raise ConfigError("--write needs a training script, and changes to try out on it")
    if trace_file and (on_twin or is_comparison):
        raise ConfigError("--trace is for one training as it is: without --twin and --compare")
    if name.endswith(".py"):
        if trace_file:
            files = filter(os.path.isfile, (word.rpartition("=")[2] for word in script_args))
            check_output("--trace", trace_file, script=name, argument=files)
        if "ranks" in fields:
            raise ConfigError(
                "explain watches one process of a script: leave --ranks out. A script for torchrun "
                "runs alone with RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
                "MASTER_PORT=29500 in the environment"
            )
        if fields or is_comparison or recipe or config:
            raise ConfigError(
                "a script has its own settings: put them after --, as in "
                f"`onsight explain {name} -- --batch-size 32`"
            )
        if on_twin:
            return _explain_on_twin(Path(name), list(script_args), limit_seconds)
        return _explain_script(
            Path(name),
            list(script_args),
            seconds,
            what_ifs,
            limit_seconds,
            trace_file=trace_file,
            write=write,
        )
    if on_twin:
        raise ConfigError(f"--twin runs a training script, and {name} is not a Python file")
    if script_args:
        raise ConfigError(f"arguments after -- are for a script, and {name} is not a Python file")
    data, settled = _settle(name, fields, (recipe, config))
    for flag, path in (("--trace", trace_file), ("--save-plot", plot_file)):
        if path:
            read = [Path(name, file) for file in ("config.toml", "plan.json", "model.safetensors")]
            check_output(flag, path, config=config, run=read, data=_files_of(data, settled))
    if is_comparison:
        return _compare(data, settled, compare or "", batch_sizes, plot_file)
    return _explain_data(data, settled, seconds, what_ifs, trace_file)


def _files_of(data: str, config: Config) -> Iterator[str]:
    """The files of DATA, which is opened once more for them if there is a file to replace."""
    from onsight.data.cache import find_cache_folder
    from onsight.data.sources.find import find_source
    from onsight.data.sources.reading import Reading

    yield data
    folder = find_cache_folder(config.cache_folder)
    yield from find_source(data, Reading.of(config.model_dump()), folder).files()


def _explain_script(
    script: Path,
    args: list[str],
    seconds: float,
    *how: Any,
    write: Path | None = None,
    **settings: Any,
) -> Explained[Any]:
    begun = time.monotonic()
    from onsight.explainer.mend.target import check_target
    from onsight.explainer.script.explain import explain_script
    from onsight.explainer.script.show import facts, print_explanation

    target = check_target(script, write) if write else None
    left = max(seconds / 2, seconds - (time.monotonic() - begun))  # torch was loaded meanwhile
    found = explain_script(script, args, left, *how, write=target, **settings)
    return Explained(found, facts, print_explanation)


def _explain_on_twin(script: Path, args: list[str], limit: float) -> Explained[Any]:
    from onsight.explainer.on_twin.explain import explain_on_twin
    from onsight.explainer.on_twin.show import facts, print_on_twin

    return Explained(explain_on_twin(script, args, limit), facts, print_on_twin)


def _explain_data(
    data: str, config: Config, seconds: float, what_ifs: bool, trace_file: Path | None
) -> Explained[Any]:
    from onsight.explainer.own.explain import explain_data
    from onsight.explainer.own.show import facts, print_explained_run

    found = explain_data(data, config, seconds, what_ifs, trace_file=trace_file)
    return Explained(found, facts, print_explained_run)


def _compare(
    data: str, config: Config, devices: str, batch_sizes: str, plot_file: Path | None
) -> Explained[Any]:
    from onsight.explainer.compare.measure import compare
    from onsight.explainer.compare.show import facts, print_comparison
    from onsight.explainer.compare.sizes import read_batch_sizes

    named = devices.split(",") if devices not in ("", "all") else ()
    found = compare(data, config, named, read_batch_sizes(batch_sizes) if batch_sizes else ())
    if plot_file:
        from onsight.explainer.compare.draw import draw_comparison

        draw_comparison(found, plot_file)
    return Explained(found, facts, print_comparison)


def _settle(
    subject: str, given: dict[str, Any], layers: tuple[str | None, Path | None]
) -> tuple[str, Config]:
    """DATA and config. A run folder stands for the ones that it was trained with."""
    recipe, file = layers
    run = Path(subject)
    is_run = (run / "config.toml").is_file() and (run / "plan.json").is_file()
    if not is_run:
        config = make_config(*config_layers(recipe, file, given))
        return subject, without_foreign_code(config, given)
    from onsight.explainer.own.explain import data_of_run

    config = make_config(*config_layers(recipe, file or run / "config.toml", given))
    without_foreign_code(config, given)
    return data_of_run(run), config
