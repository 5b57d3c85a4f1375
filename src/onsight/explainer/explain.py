"""`onsight.explain`: explain a script, a run or DATA."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from rich.console import Console
from rich.padding import Padding

from onsight.choice import Choice
from onsight.config import PLACES, Config, make_config, refuse_code_from_files
from onsight.config_files import config_layers
from onsight.errors import ConfigError, UserError
from onsight.explainer.head_run import (
    HeadRun,
    has_training_steps,
    head_facts,
    print_head,
    read_head_run,
    unfinished,
)
from onsight.files import check_output
from onsight.report.console import Reporter
from onsight.text import duration, percent
from onsight_explain.errors import ExplainError
from onsight_explain.explain import (
    LIMIT_SECONDS,
    SECONDS,
    Explained,
    check_page_name,
    check_trace_name,
    is_script,
)
from onsight_explain.explain import explain as explain_script

_MIN_SECONDS = 0.1  # phases shorter than this are not named
_FOLDS_ADVICE = "--folds 1 leaves them out, and on a frozen network (--freeze) they are short"
_ONE_OF_SEVERAL = "a small network, in place of those that --model auto trains"
_BY_USER = "set by you"


class OriginReporter(Reporter):
    """A reporter that knows where settings come from that the user has not set now.

    Args:
        origins: The reason to give instead of "set by you", by config field.
    """

    def __init__(self, origins: Mapping[str, str]) -> None:
        super().__init__()
        self.origins = origins

    def choice(self, name: str, choice: Choice[Any], *, is_detail: bool = True) -> None:
        """Print a choice with its reason."""
        reason = choice.reason.replace(_BY_USER, self.origins.get(name, _BY_USER))
        super().choice(name, replace(choice, reason=reason), is_detail=is_detail)


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
    page_file: Path | None = None,
    **fields: Any,
) -> Explained[Any]:
    """Measure what slows down a run or any training script, and which changes help.

    Args:
        subject: A run folder, DATA, or a training script.
        script_args: The arguments of the script.
        what_ifs: Try changes, and time each of them.
        seconds: About how long everything may take.
        limit_seconds: How long to wait until a script trains.
        simulate_gpu: Run the script on a simulated GPU.
        write: Where to write the script with the changes that helped most.
        compare: Devices to compare, such as "cpu,cuda:0", or "all".
        batch_sizes: Batch sizes to compare, such as "4,32".
        recipe: The recipe of the run, as for `train`.
        config: The config file of the run, as for `train`.
        trace_file: A file to write a timeline to.
        plot_file: A PNG file to draw the comparison into.
        page_file: An HTML file to write the answer to.
        **fields: Settings of the run, as for `train`.

    Raises:
        UserError: The caller can fix the problem.
    """
    name = str(subject)
    if is_script(name):
        if fields or compare is not None or batch_sizes or plot_file or recipe or config:
            raise ConfigError(
                "a script has its own settings: put them after --, as in "
                f"`onsight explain {name} -- --batch-size 32`"
            )
        with _as_user_errors():
            return explain_script(
                name,
                script_args,
                what_ifs=what_ifs,
                seconds=seconds,
                limit_seconds=limit_seconds,
                simulate_gpu=simulate_gpu,
                write=write,
                trace_file=trace_file,
                page_file=page_file,
            )
    if script_args or simulate_gpu or write:
        raise ConfigError(f"this needs a training script, and {name} is not a Python file")
    if not 0 < seconds <= TIMEOUT_MAX:
        raise ConfigError(f"--seconds is {seconds:g}; it must be a number of seconds above 0")
    if plot_file:
        from onsight.explainer.show_devices import check_plot_name

        check_plot_name(plot_file)
        compare = compare or "all"
    with _as_user_errors():
        if page_file:
            check_page_name(page_file)
        if trace_file:
            check_trace_name(trace_file)
    compares_devices = compare is not None or bool(batch_sizes)
    if trace_file and compares_devices:
        raise ConfigError("--trace records one training run as it is: omit --compare")
    data, run_config, origins = _read_subject(name, fields, recipe, config)
    for flag, path in (("--trace", trace_file), ("--save-plot", plot_file), ("--html", page_file)):
        if path:
            run = [Path(name, file) for file in ("config.toml", "plan.json", "model.safetensors")]
            check_output(flag, path, config=config, run=run, data=_files_of(data, run_config))
    reporter = OriginReporter(origins)
    head = None if config or compares_devices else _find_head_run(Path(name), run_config)
    if head and trace_file:
        raise ConfigError(f"--trace records training steps. {head.verdict}")
    if head:
        explained = Explained(head, head_facts, print_head)
    elif compares_devices:
        explained = _compare_devices(
            data, run_config, compare or "", batch_sizes, plot_file, reporter
        )
    else:
        explained = _explain_data(data, run_config, seconds, what_ifs, trace_file, reporter)
    if _is_run(Path(name)) and not compares_devices:
        explained = _with_times(explained, Path(name))
    if page_file:
        with _as_user_errors():
            explained.write_page(page_file)
    return explained


@contextmanager
def _as_user_errors() -> Iterator[None]:
    try:
        yield
    except ExplainError as error:
        raise UserError(str(error)) from error


def _files_of(data: str, config: Config) -> Iterator[str]:
    """Yield the files of DATA, which is opened only if there is a file to replace."""
    from onsight.data.cache import find_cache_folder
    from onsight.data.sources.find import ReadOptions, find_source

    yield data
    folder = find_cache_folder(config.cache_folder)
    yield from find_source(data, ReadOptions.from_config(config.model_dump()), folder).files()


def _explain_data(
    data: str,
    config: Config,
    seconds: float,
    what_ifs: bool,
    trace_file: Path | None,
    reporter: OriginReporter,
) -> Explained[Any]:
    from onsight.explainer.explain_run import explain_data
    from onsight.explainer.show_run import explanation_facts, print_explanation

    explanation = explain_data(data, config, seconds, what_ifs, reporter, trace_file)
    return Explained(explanation, explanation_facts, print_explanation)


def _compare_devices(
    data: str,
    config: Config,
    devices: str,
    batch_sizes: str,
    plot_file: Path | None,
    reporter: OriginReporter,
) -> Explained[Any]:
    from onsight.explainer.compare_devices import compare_devices, parse_batch_sizes
    from onsight.explainer.show_devices import comparison_facts, draw_comparison, print_comparison

    names = devices.split(",") if devices not in ("", "all") else ()
    sizes = parse_batch_sizes(batch_sizes) if batch_sizes else ()
    comparison = compare_devices(data, config, names, sizes, reporter)
    if plot_file:
        draw_comparison(comparison, plot_file)
    return Explained(comparison, comparison_facts, print_comparison)


def _with_times(explained: Explained[Any], run: Path) -> Explained[Any]:
    """Add where the time of the whole run went, of which training steps may be a small part."""
    times = _describe_times(run)

    def print_to(result: Any, console: Console) -> None:
        if times:
            console.print(Padding(times, (0, 0, 1, 0)), style="bold")
        explained.print_to(result, console)

    return replace(
        explained,
        to_facts=lambda result: explained.to_facts(result) | {"run_times": times},
        print_to=print_to,
    )


def _describe_times(run: Path) -> str:
    """Name a run's longest phase first; "" if the run did not record its times."""
    from onsight.report.measured import phase_times
    from onsight.report.run_files import read_results

    results: Any = read_results(run)
    phases = phase_times(results)
    if not phases:
        return ""
    (name, seconds, share), *others = phases
    advice = f" ({_FOLDS_ADVICE})" if name == "folds" else ""
    rest = [f"{other} {duration(value)}" for other, value, _ in others if value >= _MIN_SECONDS]
    return (
        f"{percent(share)} of the run's {duration(seconds / share)} went into {name}{advice}"
        f"{'; the rest: ' if rest else ''}{', '.join(rest)}."
    )


def _read_subject(
    subject: str, fields: dict[str, Any], recipe: str | None, config_file: Path | None
) -> tuple[str, Config, dict[str, str]]:
    """Return DATA, the config, and where fields come from that the user has not set.

    For a run folder, DATA and config are those that the run was trained with.
    """
    run = Path(subject)
    if not _is_run(run):
        config = make_config(*config_layers(recipe, config_file, fields))
        origins = {"model": _ONE_OF_SEVERAL} if config.model == "auto" else {}
        return subject, refuse_code_from_files(config, fields), origins
    from onsight.explainer.explain_run import data_of_run, find_config

    origins = {}
    if config_file is None:  # where the run wrote says nothing about where to write now
        origins = {name: f"as in {subject}" for name in Config.model_fields if name not in fields}
        config_file, fields = find_config(run), {**dict.fromkeys(PLACES, ""), **fields}
    config = make_config(*config_layers(recipe, config_file, fields))
    refuse_code_from_files(config, fields)
    data = data_of_run(run, config.data_format)
    if config.model == "auto":
        raise unfinished(run)
    return data, config, origins


def _find_head_run(run: Path, config: Config) -> HeadRun | None:
    """Return a run that only fitted a head; None for DATA, and for what was trained in steps."""
    if not config.freeze or not _is_run(run):
        return None
    from onsight.explainer.explain_run import find_config

    folder = find_config(run).parent
    return None if has_training_steps(folder) else read_head_run(run, folder)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and (folder / "plan.json").is_file()
