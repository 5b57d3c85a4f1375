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
from typing import TYPE_CHECKING, NoReturn

from onsight.errors import OnsightError
from onsight.version import onsight_version
from onsight_explain.errors import ExplainError

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

_INTERRUPTED = 130
_LEFT_OUT = {
    "jinja2",
    "matplotlib",
    "onsight_explain.explain",  # it has other modules of this package
    "onsight_lint",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
}  # by onsight-run

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
    "verify-resume": "Verify that a run that is killed and resumed gives the same result, "
    "bit for bit.",
    "doctor": "Check this machine: what works, what slows down training, and how to fix it.",
}
# Options of older versions that are no fields of the config, and what to do instead.
_RETIRED_FLAGS = {
    "--push": "write the folder with --to hub-folder; hf upload OWNER/NAME FOLDER uploads it",
}
_MODULES = {  # of onsight.commands, where they are not named after the command
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
_PACKAGES = {"lint": "onsight_lint"}  # commands of other distributions, which read their own words


def make_app(named: str = "") -> "App":
    """The app. named: the command to come, whose own help is all of its docstring."""
    from cyclopts import App

    app = App(
        name="onsight",
        help="Point it at images: it trains an image classifier, reports how good it is for "
        "every class, and shows what it gets wrong. Try: onsight train demo",
        version=onsight_version,
        version_flags=["--version"],
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # `main` says that it was interrupted
    )
    for place, (name, summary) in enumerate(_COMMANDS.items()):
        if name in _PACKAGES:  # only listed: `main` passes it on
            app.command(f"{_PACKAGES[name]}.cli:main", name=name, help=summary, sort_key=place)
            continue
        module, function = _find_command(name)
        text = _description(module, function) if name == named else summary
        app.command(f"{module}:{function}", name=name, help=text, sort_key=place)
    return app


def _find_command(name: str) -> tuple[str, str]:
    """Return the module and the name of a command's function."""
    function = "evaluate" if name == "eval" else name.replace("-", "_")  # eval is a builtin
    return f"onsight.commands.{_MODULES.get(name, name)}", function


def _description(module: str, function: str) -> str:
    """A command's docstring up to its parameters, with a line for each paragraph."""
    text = inspect.getdoc(getattr(import_module(module), function)) or ""
    described = text.partition("\n\nParameters\n")[0]
    return re.sub(r"(?<=\S)\n(?=\S)", " ", described)


def main(tokens: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 failed, 2 the user can fix it, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if tokens is None else list(tokens)
    command = next((word for word in words if not word.startswith("-")), "")
    package = "onsight_explain" if _explains_script(command, words) else _PACKAGES.get(command)
    if package:
        words.remove(command)
        _pass_on(package, words)
    try:
        _run(command, words)
        sys.stdout.flush()
    except (OnsightError, ExplainError) as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in _LEFT_OUT:
            raise
        package = error.name.partition(".")[0]
        _fail(
            f"this needs {package}, which an installation of onsight-run leaves out; it predicts "
            "and serves exported models. For everything else: pip install onsight",
            2,
        )
    except BrokenPipeError:  # whatever read stdout, such as head, has closed it
        _drop_output()
        _drop_unread_errors()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        _fail("no space left to write the output to; what was written before is complete", 1)
    sys.exit(0)


def _explains_script(command: str, words: Sequence[str]) -> bool:
    """Whether it is a script, or a notebook, that is to be explained: not DATA or a run."""
    own = takewhile(lambda word: word != "--", words)
    return command == "explain" and any(word.endswith((".py", ".ipynb")) for word in own)


def _pass_on(package: str, words: Sequence[str]) -> NoReturn:
    """Let the command line of another distribution read the words."""
    try:
        command_line = import_module(f"{package}.cli")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.cli"):  # of which onsight-run has a part
            raise
        name = package.replace("_", "-")
        _fail(f"this needs {name}, which is not installed: pip install {name}", 2)
    sys.exit(command_line.main(words))


def _run(command: str, words: Sequence[str]) -> None:
    """Run one of our own commands. Exits with 2 if its words cannot be used."""
    from cyclopts import CycloptsError

    app = make_app(command)
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _fail(_explain_usage(error), 2)


def _drop_output() -> None:
    """Let what is still to be written to stdout vanish: Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _drop_unread_errors() -> None:
    """The same for stderr, if its reader has gone as well."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _explain_usage(error: "CycloptsError") -> str:
    from cyclopts import UnknownOptionError
    from pydantic import ValidationError

    from onsight.config import RETIRED_FIELDS, explain_invalid

    if isinstance(error.__cause__, ValidationError):
        return explain_invalid(error.__cause__)
    if isinstance(error, UnknownOptionError):
        word = error.token.keyword or error.token.value
        flag = word.partition("=")[0].replace("_", "-")
        field = RETIRED_FIELDS.get(flag[2:].replace("-", "_"))
        instead = field.instead if field else _RETIRED_FLAGS.get(flag)
        if instead:
            return f"{flag} was removed: {instead}."
    return f"{error}\nSee `onsight --help`, or a command's own --help."


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
