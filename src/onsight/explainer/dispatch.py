"""Chooses the explanation by what `onsight explain` was given: a script, a run or DATA."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from onsight.config import Config, config_layers, make_config, without_foreign_code
from onsight.errors import ConfigError
from onsight.files import check_writable

_SCRIPTS = (".py", ".ipynb")
Compared = tuple[str, str, Path | None]  # devices, batch sizes, where to save the plot


def explain_any(
    subject: str,
    script_args: list[str],
    *,
    given: dict[str, Any],
    layers: tuple[str | None, Path | None],
    compared: Compared | None,
    what_ifs: bool,
    seconds: float,
    limit_seconds: float,
    on_twin: bool,
    as_json: bool,
    trace_file: Path | None = None,
) -> None:
    """Explain and print.

    given: fields named on the command line; layers: recipe and config file; on_twin: run a script
    on a simulated GPU; trace_file: to write a timeline into. Raises UserError for what the user can
    fix.
    """
    if trace_file:
        if on_twin or compared:
            raise ConfigError("--trace is for one training as it is: without --twin and --compare")
        check_writable(trace_file)
    if subject.endswith(_SCRIPTS):
        ranks = given.pop("ranks", 1) or 1
        if given or compared or any(layers):
            raise ConfigError(
                "a script has its own settings: put them after --, as in "
                f"`onsight explain {subject} -- --batch-size 32`"
            )
        if on_twin:
            if ranks > 1 or not subject.endswith(".py"):
                raise ConfigError("--twin runs one process of a Python file: leave out --ranks")
            _explain_on_twin(Path(subject), script_args, limit_seconds, as_json)
        else:
            from onsight.explainer.script.explain import explain_script
            from onsight.explainer.script.show import facts, print_explanation

            found = explain_script(
                Path(subject),
                script_args,
                seconds,
                what_ifs,
                limit_seconds,
                ranks=ranks,
                trace_file=trace_file,
            )
            if as_json:
                print(json.dumps(facts(found)))
            else:
                print_explanation(found, _console())
        return
    if on_twin:
        raise ConfigError(f"--twin runs a training script, and {subject} is not a Python file")
    if script_args:
        raise ConfigError(
            f"arguments after -- are for a script, and {subject} is not a Python file"
        )
    data, config = _settle(subject, given, layers)
    if compared:
        _compare(data, config, compared, as_json)
    else:
        _explain_data(data, config, seconds, what_ifs, as_json, trace_file)


def _explain_on_twin(script: Path, args: list[str], limit: float, as_json: bool) -> None:
    from onsight.explainer.on_twin.explain import explain_on_twin
    from onsight.explainer.on_twin.show import facts, print_on_twin

    found = explain_on_twin(script, args, limit)
    if as_json:
        print(json.dumps(facts(found)))
    else:
        print_on_twin(found, _console())
    if not found.is_sound:
        raise SystemExit(1)


def _explain_data(
    data: str,
    config: Config,
    seconds: float,
    what_ifs: bool,
    as_json: bool,
    trace_file: Path | None,
) -> None:
    from onsight.explainer.own.explain import explain_data
    from onsight.explainer.own.show import facts, print_explained_run

    found = explain_data(data, config, seconds, what_ifs, trace_file=trace_file)
    if as_json:
        print(json.dumps(facts(found)))
    else:
        print_explained_run(found, _console())


def _compare(data: str, config: Config, compared: Compared, as_json: bool) -> None:
    from onsight.explainer.compare.draw import check_plot_place, draw_comparison
    from onsight.explainer.compare.measure import compare
    from onsight.explainer.compare.show import facts, print_comparison
    from onsight.explainer.compare.sizes import read_batch_sizes

    devices, sizes, plot = compared
    if plot:
        check_plot_place(plot)
    named = devices.split(",") if devices not in ("", "all") else ()
    comparison = compare(data, config, named, read_batch_sizes(sizes) if sizes else ())
    if as_json:
        print(json.dumps(facts(comparison)))
    else:
        print_comparison(comparison, _console())
    if plot:
        draw_comparison(comparison, plot)
        if not as_json:
            print(f"plot: {plot}")


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


def _console() -> Console:
    return Console(highlight=False, markup=False)
