"""Chooses the explanation by what `onsight explain` was given: a script, a run or DATA."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onsight.config import Config, config_layers, make_config, without_foreign_code
from onsight.errors import ConfigError, UserError
from onsight.files import check_output
from onsight_explain.errors import ExplainError
from onsight_explain.explain import LIMIT_SECONDS, SECONDS, Explained, is_script
from onsight_explain.explain import explain as explain_script


def explain(
    subject: str | Path,
    script_args: Sequence[str] = (),
    *,
    what_ifs: bool = True,
    seconds: float = SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    simulate_gpu: bool = False,
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
    seconds: for all of it, about; limit_seconds: until a script trains; simulate_gpu: run it on
    a simulated GPU; write: where the script goes with the changes that won; compare: devices such
    as "cpu,cuda:0", or "all", at these batch_sizes, such as "4,32"; trace_file: to write a timeline
    into; plot_file: a PNG file to draw the comparison into; recipe, config, fields: those of the
    run, as for `train`. Raises UserError for what the caller can fix.
    """
    name = str(subject)
    if is_script(name):
        if fields or compare is not None or batch_sizes or plot_file or recipe or config:
            raise ConfigError(
                "a script has its own settings: put them after --, as in "
                f"`onsight explain {name} -- --batch-size 32`"
            )
        try:
            return explain_script(
                name,
                script_args,
                what_ifs=what_ifs,
                seconds=seconds,
                limit_seconds=limit_seconds,
                simulate_gpu=simulate_gpu,
                write=write,
                trace_file=trace_file,
            )
        except ExplainError as error:
            raise UserError(str(error)) from error
    if script_args or simulate_gpu or write:
        raise ConfigError(f"this needs a training script, and {name} is not a Python file")
    if seconds <= 0:
        raise ConfigError("--seconds must be more than 0")
    if plot_file:
        from onsight.explainer.compare.draw import check_plot_name  # loads matplotlib

        check_plot_name(plot_file)
        compare = compare or "all"
    is_comparison = compare is not None or bool(batch_sizes)
    if trace_file and is_comparison:
        raise ConfigError("--trace is for one training as it is: without --compare")
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
    from onsight.data.sources.find import ReadOptions, find_source

    yield data
    folder = find_cache_folder(config.cache_folder)
    yield from find_source(data, ReadOptions.from_config(config.model_dump()), folder).files()


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
