"""The command line: its commands and their exit codes.

Results go to stdout, everything else to stderr. Commands are imported when they are called, so
that `onsight --help` is quick.
"""

import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from onsight.errors import Interrupted, OnsightError
from onsight.installation import onsight_version
from onsight.text import printable
from onsight_explain.errors import ExplainError
from onsight_explain.threads import choose_spinning

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

_INTERRUPTED = 130
_LEFT_OUT = {
    "jinja2",
    "matplotlib",
    "onsight_explain.explain",  # other modules of this package are included
    "onsight_lint",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
}  # what onsight-run does not install

_COMMANDS = {
    "train": "Train an image classifier and report its accuracy for every class.",
    "sweep": "Train every combination of some settings and compare the results.",
    "check": "Find problems in a dataset before training: copies, leaks, wrong labels, bad files.",
    "eval": "Evaluate a model on DATA, without the images it was trained on.",
    "shard": "Write DATA as WebDataset shards: tar files that object stores serve quickly.",
    "predict": "Predict the class of images.",
    "export": "Export a model for other runtimes, and verify it on held-out images.",
    "embed": "Write the features of images to a file, for other programs.",
    "similar": "Find the images that look most like others.",
    "serve": "Serve predictions over HTTP, with a page to drop images on.",
    "models": "List models, their cost, and whether their weights are available offline.",
    "recipes": "List the ready-made configs for --recipe and the results they reproduce.",
    "report": "Rebuild a run's report.html from the files in its folder.",
    "compare": "Compare runs image by image: which is better, and is the difference significant?",
    "card": "Write a model card for a run, or a folder for the Hugging Face Hub.",
    "explain": "Find out what slows down a run or any training script, and what would help.",
    "lint": "Find mistakes in training scripts by reading them: nothing is run, no torch needed.",
    "verify-resume": "Verify that a run that is killed and resumed has the same result, "
    "bit for bit.",
    "doctor": "Check this machine: what works, what slows down training, and how to fix it.",
}
# Removed options that are not config fields, and what to do instead.
_RETIRED_FLAGS = {
    "--push": "write the folder with --to hub-folder; hf upload OWNER/NAME FOLDER uploads it",
}
_MODULES = {  # modules in onsight.commands that are not named after the command
    "card": "report",
    "check": "data",
    "compare": "report",
    "doctor": "info",
    "embed": "predict",
    "eval": "evaluate",
    "models": "info",
    "recipes": "info",
    "shard": "data",
    "similar": "predict",
    "sweep": "train",
    "verify-resume": "train",
}
# Commands that compute something with torch in this process.
_COMPUTING = {"check", "embed", "eval", "explain", "export", "predict", "serve", "similar"}
_COMPUTING |= {"sweep", "train"}
# Commands that take every setting of a run, most of which only --help-all shows.
_WITH_SETTINGS = {"train", "sweep", "verify-resume", "explain"}
_OTHER_NAMES = {  # of settings, in other tools
    "--batch": "--batch-size",
    "--imgsz": "--image-size",
    "--lr": "--learning-rate",
    "--wd": "--weight-decay",
    "--workers": "--threads",
}
_PACKAGES = {"lint": "onsight_lint"}  # commands of other distributions, which parse their arguments


def make_app(named: str = "", shows_all: bool = False) -> "App":
    """Build the app.

    Args:
        named: The command to run, whose help is its whole docstring.
        shows_all: Whether help lists all settings of a run, not only the usual ones.
    """
    from cyclopts import App, Parameter

    app = App(
        name="onsight",
        help="Point it at images: it trains an image classifier, reports how good it is for "
        "every class, and shows its mistakes. Try: onsight train demo",
        version=onsight_version,
        version_flags=["--version"],
        help_format="plaintext",
        default_parameter=Parameter(show_default=_describe_default),
        suppress_keyboard_interrupt=False,  # `main` reports it
    )
    for place, (name, summary) in enumerate(_COMMANDS.items()):
        if name in _PACKAGES:  # only listed: `main` passes it on
            app.command(f"{_PACKAGES[name]}.cli:main", name=name, help=summary, sort_key=place)
            continue
        module, function = _find_command(name)
        text = _description(module, function) if name == named else summary
        options: dict[str, Any] = {}
        if name in _WITH_SETTINGS:
            options["help_flags"] = ["--help", "-h", "--help-all"]
            if not shows_all:
                options["help_epilogue"] = f"All options: onsight {name} --help-all"
                options["default_parameter"] = Parameter(show=False)  # unless set otherwise
        app.command(f"{module}:{function}", name=name, help=text, sort_key=place, **options)
    return app


def _describe_default(value: object) -> str | None:
    return None if value is False or value in (None, "", ()) else str(value)


def _find_command(name: str) -> tuple[str, str]:
    """Return the module and the name of a command's function."""
    function = "evaluate" if name == "eval" else name.replace("-", "_")  # eval is a builtin
    return f"onsight.commands.{_MODULES.get(name, name)}", function


def _description(module: str, function: str) -> str:
    """Return a command's docstring, with a line for each paragraph."""
    text = inspect.getdoc(getattr(import_module(module), function)) or ""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def main(tokens: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 success, 1 failure, 2 user error, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    args = sys.argv[1:] if tokens is None else list(tokens)
    command = next((arg for arg in args if not arg.startswith("-")), "")
    package = "onsight_explain" if _explains_script(command, args) else _PACKAGES.get(command)
    if package:
        args.remove(command)
        _forward(package, args)
    try:
        _run(command, args)
        sys.stdout.flush()
    except Interrupted as stop:  # what was asked for
        print(printable(str(stop)), file=sys.stderr)
        sys.exit(stop.exit_code)
    except (OnsightError, ExplainError) as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in _LEFT_OUT:
            raise
        package = error.name.partition(".")[0]
        _fail(
            f"this needs {package}, which onsight-run does not install: it only predicts with and "
            "serves exported models. For everything else: pip install onsight",
            2,
        )
    except BrokenPipeError:  # the reader of stdout, such as head, has closed it
        _drop(sys.stdout)
        try:
            sys.stderr.flush()
        except OSError:  # so has that of stderr
            _drop(sys.stderr)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # of anything that the user has named
            _fail(f"{error.filename}: {error.strerror}", 2)
        if error.errno != errno.ENOSPC:
            raise
        _drop(sys.stdout)
        _fail("no space left to write the output; what was written before is complete", 1)
    sys.exit(0)


def _explains_script(command: str, args: Sequence[str]) -> bool:
    """Return whether a script or notebook is to be explained, not DATA or a run."""
    own_args = takewhile(lambda arg: arg != "--", args)
    return command == "explain" and any(arg.endswith((".py", ".ipynb")) for arg in own_args)


def _forward(package: str, args: Sequence[str]) -> NoReturn:
    """Run the command line of another distribution."""
    try:
        command_line = import_module(f"{package}.cli")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.cli"):  # onsight-run contains a part of it
            raise
        name = package.replace("_", "-")
        _fail(f"this needs {name}, which is not installed: pip install {name}", 2)
    sys.exit(command_line.main(args))


def _run(command: str, args: Sequence[str]) -> None:
    """Run a built-in command. Exits with 2 if its arguments are wrong."""
    from cyclopts import CycloptsError

    if command in _COMPUTING:
        choose_spinning()  # before torch loads
    app = make_app(command, "--help-all" in args)
    try:
        app(args, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(_explain_usage(error, command), 2)


def _drop(stream: TextIO) -> None:
    """Discard what is left to write to a stream: Python would try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain_usage(error: "CycloptsError", command: str) -> str:
    from cyclopts import UnknownOptionError
    from pydantic import ValidationError

    from onsight.config import RETIRED_FIELDS, explain_invalid

    if isinstance(error.__cause__, ValidationError):
        return explain_invalid(error.__cause__)
    if isinstance(error, UnknownOptionError):
        token = error.token.keyword or error.token.value
        flag = token.partition("=")[0].replace("_", "-")
        field = RETIRED_FIELDS.get(flag[2:].replace("-", "_"))
        instead = field.instead if field else _RETIRED_FLAGS.get(flag)
        if instead:
            return f"{flag} was removed: {instead}."
        if flag in _OTHER_NAMES and command in _WITH_SETTINGS:
            return f"there is no option {flag}. Did you mean {_OTHER_NAMES[flag]}?"
    return f"{error}\nSee `onsight --help`, or `onsight COMMAND --help`."


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(code)
