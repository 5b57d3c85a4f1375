"""The command `onsight-lint`, which is also `onsight lint`.

What was found goes to stdout, everything else to stderr.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, TextIO

from onsight_lint.errors import LintError, ReadError
from onsight_lint.formats.data import as_github, as_json
from onsight_lint.formats.sarif import as_sarif
from onsight_lint.formats.text import as_text, plural, summary
from onsight_lint.library import Library
from onsight_lint.many import Readings, read_many
from onsight_lint.mend import difference, mended, rewrite
from onsight_lint.paths import python_files, shown
from onsight_lint.rule import Rule
from onsight_lint.source import decoded, read_content
from onsight_lint.table import chosen

_INTERRUPTED = 130

_DESCRIPTION = """\
Find mistakes in training scripts by reading them: nothing is run, no torch needed.

These are mistakes that a run does not reveal, such as an evaluation in training mode. Each is
shown with the corrected line; what is marked [--fix] can be corrected by --fix.
"""
_EPILOG = """\
exit codes:
  0  no mistakes
  1  mistakes; with --diff, something to fix
  2  a file that cannot be read or, with --fix, is left as it is; a wrong option

In the code, a comment `# onsight: ignore[id]` silences a rule on its line, `# onsight: ignore` all
rules, and `# onsight: ignore-file` a whole file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1 or 2 as in its help, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _lint(_parse(argv))
        sys.stdout.flush()
        return code
    except LintError as error:
        return _failed(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _failed("interrupted", _INTERRUPTED)
    except BrokenPipeError:  # whatever read stdout, such as head, has closed it
        _drop(sys.stdout)
        try:
            sys.stderr.flush()
        except OSError:
            _drop(sys.stderr)
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop(sys.stdout)
        return _failed("no space left to write the output to", 1)


class _Parser(argparse.ArgumentParser):
    """Raises LintError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise LintError(f"{message}. See `{self.prog} --help`.")


def make_parser() -> argparse.ArgumentParser:
    """The options and their help."""
    parser = _Parser(
        prog="onsight-lint",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="scripts and folders; the working folder, if none are named. Each script is read "
        "together with the modules of its own folder that it imports. A single - stands for "
        "standard input: --fix then prints the mended text, as an editor wants it, and what is "
        "left to stderr.",
    )
    parser.add_argument(
        "--select",
        default="",
        metavar="RULES",
        help="only these rules: ids or their beginnings, separated by commas",
    )
    parser.add_argument("--ignore", default="", metavar="RULES", help="all rules but these")
    parser.add_argument(
        "--fix", action="store_true", help="rewrite files where the mend is certain ([--fix])"
    )
    parser.add_argument(
        "--diff", action="store_true", help="print what --fix would change, and change nothing"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "github", "sarif"),
        default="text",
        help="for people (text, the default), programs, pull requests, or code scanning",
    )
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    options, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        raise LintError(f"Unknown option: {unknown[0]}. See `{parser.prog} --help`.")
    return options


def _lint(options: argparse.Namespace) -> int:
    """Read, mend and print as the options say, and return the exit code."""
    rules, out = chosen(options.select, options.ignore), sys.stdout
    is_piped = options.paths == [Path("-")]
    if is_piped:
        files = [Path.cwd() / "stdin"]
        texts = {files[0]: decoded(Path("stdin"), sys.stdin.buffer.read())}
    else:
        files = python_files(options.paths or [Path(".")])
        contents, texts = _read(files)
    if not (options.fix or options.diff):
        readings = read_many(files, Library(texts), rules)
    else:
        changed, readings = mended(files, rules, texts)
        if options.diff:
            out.write("".join(difference(*one, texts) for one in changed.items()))
            return _exit_code(readings, bool(changed))
        if is_piped:
            texts |= changed
            out.write(texts[files[0]])
            out = sys.stderr
        else:
            texts |= _rewrite(changed, contents, readings)
    _show(readings, Library(texts), rules, options.format, out)
    return _exit_code(readings, bool(readings.findings))


def _read(files: Sequence[Path]) -> tuple[dict[Path, bytes], dict[Path, str]]:
    """What files hold, and their texts. Whatever is found, mended or shown is of this moment."""
    contents, texts = {}, {}
    for path in files:
        with suppress(ReadError):  # `read_many` says why
            content = read_content(path)
            contents[path], texts[path] = content, decoded(path, content)
    return contents, texts


def _rewrite(
    changed: Mapping[Path, str], contents: Mapping[Path, bytes], readings: Readings
) -> dict[Path, str]:
    """Rewrite files, and return the texts of those that were not left as they are."""
    done = {}
    for path, text in changed.items():
        try:
            rewrite(path, text, contents.get(path, b""))
            done[path] = text
        except ReadError as error:
            readings.leave(path, str(error))
    if done:
        print(f"mended {plural(len(done), 'file')}", file=sys.stderr)
    return done


def _show(
    readings: Readings, library: Library, rules: Sequence[Rule], form: str, out: TextIO
) -> None:
    found = readings.sorted
    if form == "json":
        out.write(as_json(readings))
    elif form == "github":
        out.write(as_github(found))
    elif form == "sarif":
        out.write(as_sarif(found, rules, _version()))
    else:
        colour = out.isatty() and "NO_COLOR" not in os.environ
        out.write(as_text(found, library, colour))
    out.flush()
    for path, said in readings.unread.items():
        print(f"error: {said.replace(str(path), shown(path))}", file=sys.stderr)
    print(summary(readings), file=sys.stderr)


def _exit_code(readings: Readings, found: bool) -> int:
    return 2 if readings.unread else int(found)


def _version() -> str:
    try:
        return version("onsight-lint")
    except PackageNotFoundError:  # a bare copy of the files
        return "unknown"


def _drop(stream: TextIO) -> None:
    """Let what is still to be written vanish: Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
