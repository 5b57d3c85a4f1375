"""Chooses the explanation by what `onsight explain` was given: a script, a run or DATA."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onsight.config import Config, config_layers, make_config, without_foreign_code
from onsight.errors import ConfigError, UserError
from onsight.files import check_writable
from onsight_explain.errors import ExplainError
from onsight_explain.explain import LIMIT_SECONDS, QUICK_SECONDS, SECONDS, Explained
from onsight_explain.explain import explain as explain_script


def explain(
    subject: str | Path,
    script_args: Sequence[str] = (),
    *,
    what_ifs: bool = True,
    seconds: float = SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    on_twin: bool = False,
    write: Path | None = None,
    compare: str | None = None,
    batch_sizes: str = "",
    recipe: str | None = None,
    config: Path | None = None,
    trace_file: Path | None = None,
    **fields: Any,
) -> Explained[Any]:
    """Find out what slows down a run or any training script, and what would help.

    subject: a run folder, DATA, or a script, which takes script_args; what_ifs: try out changes;
    seconds: for all of it, about; limit_seconds: until a script trains; on_twin: run the script on
    a simulated GPU; write: where the script goes with the changes that won; compare: devices such
    as "cpu,cuda:0", or "all", at these batch_sizes, such as "4,32"; trace_file: to write a timeline
    into; recipe, config, fields: those of the run, as for `train`. Raises UserError for what the
    caller can fix.
    """
    name, is_comparison = str(subject), compare is not None or bool(batch_sizes)
    if is_script(name):
        if fields or is_comparison or recipe or config:
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
                on_twin=on_twin,
                write=write,
                trace_file=trace_file,
            )
        except ExplainError as error:
            raise UserError(str(error)) from error
    if seconds <= 0:
        raise ConfigError("--seconds must be more than 0")
    if script_args or on_twin or write:
        raise ConfigError(f"this needs a training script, and {name} is not a Python file")
    if trace_file:
        if is_comparison:
            raise ConfigError("--trace is for one training as it is: without --compare")
        check_writable(trace_file)
    data, settled = _settle(name, fields, (recipe, config))
    if is_comparison:
        return _compare(data, settled, compare or "", batch_sizes)
    return _explain_data(data, settled, seconds, what_ifs, trace_file)


def is_script(name: str) -> bool:
    """Whether a name is that of a script, or of a notebook, which the message about it explains."""
    return name.endswith((".py", ".ipynb"))


def _explain_data(
    data: str, config: Config, seconds: float, what_ifs: bool, trace_file: Path | None
) -> Explained[Any]:
    from onsight.explainer.own.explain import explain_data
    from onsight.explainer.own.show import facts, print_explained_run

    found = explain_data(data, config, seconds, what_ifs, trace_file=trace_file)
    return Explained(found, facts, print_explained_run)


def _compare(data: str, config: Config, devices: str, batch_sizes: str) -> Explained[Any]:
    from onsight.explainer.compare.measure import compare
    from onsight.explainer.compare.show import facts, print_comparison
    from onsight.explainer.compare.sizes import read_batch_sizes

    named = devices.split(",") if devices not in ("", "all") else ()
    found = compare(data, config, named, read_batch_sizes(batch_sizes) if batch_sizes else ())
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
