"""The command `onsight-explain`, which `onsight explain SCRIPT.py` passes its arguments to."""

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from onsight_explain.errors import ExplainError
from onsight_explain.explain import LIMIT_SECONDS, QUICK_SECONDS, SECONDS, explain
from onsight_explain.threads import choose_spinning
from onsight_lint.files import printable

_INTERRUPTED = 130
_NO_RANKS = (
    "--ranks is not supported for scripts; only one process is profiled. To run a script for "
    "torchrun as a single process, put RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 "
    "MASTER_PORT=29500 in its environment"
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit.

    Exit codes: 0 for success; 1 for a fixed script that failed verification or a script that fails
    on the simulated GPU; 2 for a problem the user can fix; 130 and 143 after SIGINT and SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # after cleaning up
    try:
        options = _parse(list(sys.argv[1:] if argv is None else argv))
        choose_spinning()  # before torch loads
        sys.exit(_run(options))
    except ExplainError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _run(options: argparse.Namespace) -> int:
    """Explain, print, and return the exit code."""
    explained = explain(
        options.script,
        options.script_args,
        what_ifs=options.what_ifs,
        seconds=min(options.seconds, QUICK_SECONDS) if options.quick else options.seconds,
        limit_seconds=options.limit,
        simulate_gpu=options.simulate_gpu,
        write=options.write,
        trace_file=options.trace,
        page_file=options.html,
    )
    if options.json:
        print(json.dumps(explained.facts()), flush=True)
    else:
        explained.show()
    if options.simulate_gpu:
        return 0 if explained.result.is_sound else 1
    delivery = explained.result.delivery
    if options.write and not delivery and not options.json:
        print(f"{options.write} was not written: no change was shown to help", flush=True)
    return 0 if not delivery or delivery.is_sound else 1


def _parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line; arguments after `--` belong to the script."""
    end = words.index("--") if "--" in words else len(words)
    parser = make_parser()
    options, unknown = parser.parse_known_intermixed_args(words[:end])
    if "--ranks" in unknown:
        parser.error(_NO_RANKS)
    if unknown:
        parser.error(
            f"unknown option {unknown[0]}; the script's options come after --, as in "
            f"`{parser.prog} {options.script} -- {unknown[0]}`"
        )
    options.script_args = [*options.script_args, *words[end + 1 :]]
    return options


class _ArgumentParser(argparse.ArgumentParser):
    """Raises ExplainError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise ExplainError(f"{message}. See `{self.prog} --help`.")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with its help."""
    parser = _ArgumentParser(
        prog="onsight-explain",
        allow_abbrev=False,
        usage="%(prog)s [options] SCRIPT.py [-- ARGUMENTS OF THE SCRIPT]",
        description="Find out what slows down a PyTorch training script, and what would help. The "
        "script runs unchanged for some seconds, then with changes, each timed against the "
        "original.",
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT.py", type=Path, help="Any PyTorch training script.")
    add(
        "script_args",
        nargs="*",
        default=[],  # or argparse would require them
        metavar="ARGUMENTS",
        help="Arguments of the script, after --.",
    )
    add(
        "--seconds",
        type=float,
        default=SECONDS,
        help="How long it may take, in seconds, approximately and without the set-up of the script "
        "(default: %(default)g). More time distinguishes smaller gains from noise, and allows more "
        "changes to be tried for a script that starts slowly.",
    )
    add(
        "--quick",
        action="store_true",
        help=f"Take {QUICK_SECONDS:.0f} seconds instead of {SECONDS:.0f}.",
    )
    add(
        "--what-ifs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Try changes and time each of them (default: yes).",
    )
    add(
        "--write",
        type=Path,
        metavar="FILE",
        help="Write the script with the changes that helped most to this file, after running it "
        "against the original.",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="Write the measured steps to this file as a timeline, to be opened at "
        "ui.perfetto.dev or in chrome://tracing.",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="Write the result to this file as a page, too.",
    )
    add(
        "--simulate-gpu",
        action="store_true",
        help="Run the script on a GPU simulated on the CPU, and report the line that fails on a "
        "GPU and those that make Python wait for it in every step. Needs no GPU; the speed is "
        "meaningless. Exit code 1 if the script fails.",
    )
    add(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        metavar="SECONDS",
        help="Longest set-up of the script, and with --write of its fixed version: the time from "
        "its start to its first training steps (default: %(default)g).",
    )
    add("--json", action="store_true", help="Print the result as one JSON object on stdout.")
    add("--version", action="version", version=f"%(prog)s {_version()}")
    return parser


def _version() -> str:
    try:
        return version("onsight-explain")
    except PackageNotFoundError:  # a bare copy of the files
        return "unknown"
