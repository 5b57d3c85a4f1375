"""Explains a training script: the entry point in Python, which the command line uses as well."""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, Generic, TypeVar

from rich.console import Console

from onsight_explain.console import TextConsole
from onsight_explain.errors import ExplainError
from onsight_explain.files import check_output, refuse_foreign, write_atomically

SECONDS = 60.0  # approximate time of the whole command
QUICK_SECONDS = 30.0
LIMIT_SECONDS = 120.0
_NOTEBOOK = ".ipynb"
_PAGE_WIDTH = 110  # characters
_PAGE_MARK = b'<meta name="generator" content="onsight explain">'
_TRACE_MARK = b'"generator":"onsight explain"'
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="generator" content="onsight explain">
<title>What limits the training</title>
<style>
body {{ color: {foreground}; background: {background}; margin: 2em; }}
pre {{ font: 14px/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-x: auto; }}
{stylesheet}
</style>
</head>
<body><pre>{code}</pre></body>
</html>
"""

R = TypeVar("R")


@dataclass(frozen=True)
class Explained(Generic[R]):
    """An explanation, with methods to present it.

    Attributes:
        result: Everything that was measured.
        to_facts: Returns plain values.
        print_to: Prints the explanation.
    """

    result: R
    to_facts: Callable[[R], dict[str, Any]]
    print_to: Callable[[R, Console], None]

    def facts(self) -> dict[str, Any]:
        """Return plain values, including at least `verdict`."""
        return self.to_facts(self.result)

    def show(self, console: Console | None = None) -> None:
        """Print the explanation as `onsight-explain` does."""
        self.print_to(self.result, console or TextConsole())

    def write_page(self, file: Path) -> None:
        """Write an HTML page with what `show` prints.

        Raises:
            DiskError: The file cannot be written.
        """
        console = TextConsole(record=True, file=io.StringIO(), width=_PAGE_WIDTH)
        self.show(console)
        page = console.export_html(code_format=_PAGE)
        write_atomically(file, page.encode("utf-8", "backslashreplace"))


def check_page_name(file: Path) -> None:
    """Raise ExplainError if a page would get the name of another kind of file, or replace one."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise ExplainError(f"--html {file} writes a page: name a file that ends in .html")
    refuse_foreign(file, _PAGE_MARK, "a page", "--html")


def check_trace_name(file: Path) -> None:
    """Raise ExplainError if a timeline would replace another kind of file."""
    refuse_foreign(file, _TRACE_MARK, "a timeline", "--trace")


def explain(
    script: str | Path,
    script_args: Sequence[str] = (),
    *,
    what_ifs: bool = True,
    seconds: float = SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
    simulate_gpu: bool = False,
    write: Path | None = None,
    trace_file: Path | None = None,
    page_file: Path | None = None,
) -> Explained[Any]:
    """Measure what slows down a training script, and which changes help.

    Args:
        script: A Python file, which is run unchanged.
        script_args: Arguments of the script.
        what_ifs: Try changes and time each of them.
        seconds: How long all of it may take, approximately and without the set-up of the script.
        limit_seconds: The longest set-up: from the script's start to its first training steps.
        simulate_gpu: Run the script on a GPU simulated on the CPU, without timing anything.
        write: Where to write the script with the changes that helped most.
        trace_file: Where to write a timeline of the measured steps.
        page_file: Where to write the explanation as a page.

    Raises:
        ExplainError: For what the caller can fix.
    """
    began, script = time.monotonic(), Path(script)
    for flag, given in (("--seconds", seconds), ("--limit", limit_seconds)):
        if not 0 < given <= TIMEOUT_MAX:
            raise ExplainError(f"{flag} is {given:g}; it must be a number of seconds above 0")
    if script.suffix == _NOTEBOOK:
        raise ExplainError(
            f"{script} is a notebook: make a script of it (`jupyter nbconvert --to script "
            f"{script}`) and explain that"
        )
    if script.suffix != ".py":
        raise ExplainError(f"{script} is not a Python file")
    if write and (simulate_gpu or not what_ifs):
        raise ExplainError(
            "--write needs changes to try out: remove --simulate-gpu and --no-what-ifs"
        )
    if trace_file and simulate_gpu:
        raise ExplainError("--trace is a timeline of measured steps: remove --simulate-gpu")
    if trace_file and trace_file.suffix == ".py":
        raise ExplainError(f"--trace writes JSON, and {trace_file} is a script; name another file")
    inputs: list[str | Path] = [script, *(word.rpartition("=")[2] for word in script_args)]
    if trace_file:
        trace_file = check_output(trace_file, "--trace", inputs)
        check_trace_name(trace_file)
    if page_file:
        page_file = check_output(page_file, "--html", inputs)
        check_page_name(page_file)
    explained: Explained[Any]
    if simulate_gpu:
        from onsight_explain.on_simulated_gpu import explain as simulation

        result = simulation.run_on_simulated_gpu(script, list(script_args), limit_seconds)
        explained = Explained(result, simulation.facts, simulation.print_simulation)
    else:
        from onsight_explain.delivery.delivery import check_target
        from onsight_explain.diagnosis.explain import explain_script
        from onsight_explain.diagnosis.show import facts, print_explanation

        target = check_target(script, write) if write else None
        loading_seconds = time.monotonic() - began  # of torch
        explanation = explain_script(
            script,
            list(script_args),
            max(seconds / 2, seconds - loading_seconds),
            what_ifs,
            limit_seconds,
            write=target,
            trace_file=trace_file,
        )
        explained = Explained(explanation, facts, print_explanation)
    if page_file:
        explained.write_page(page_file)
    return explained


def is_script(name: str) -> bool:
    """Return whether a name names a script, or a notebook, which `explain` refuses."""
    return name.endswith((".py", _NOTEBOOK))
