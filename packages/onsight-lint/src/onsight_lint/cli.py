"""The command `onsight-lint`, which is also `onsight lint`.

Findings go to stdout, everything else to stderr.
"""

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, TextIO

from onsight_lint.errors import LintError, ReadError, WriteError
from onsight_lint.files import (
    decode,
    display_path,
    encode,
    printable,
    python_files,
    read_bounded,
    read_content,
    rewrite,
)
from onsight_lint.formats import as_github, as_json, as_sarif, as_text, plural, summary
from onsight_lint.read import select_rules
from onsight_lint.read_many import LintResult, fix_many, read_many
from onsight_lint.rule import Rule
from onsight_lint.script import Library

_INTERRUPTED = 130

_DESCRIPTION = """\
Find mistakes in training scripts by reading them: nothing is run, no torch needed.

These are mistakes that a run does not reveal, such as an evaluation in training mode. Each is
shown with the corrected line; --fix corrects those marked [--fix].
"""
_EPILOG = """\
exit codes:
  0  nothing found
  1  mistakes; with --diff, something to fix
  2  a file that cannot be read or, with --fix, is left unchanged; a wrong option

In the code, a comment `# onsight: ignore[id]` silences a rule on its line, `# onsight: ignore` all
rules, and `# onsight: ignore-file` a whole file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 0, 1 or 2 as in its help, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape names that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _lint(_parse(argv))
        sys.stdout.flush()
        return code
    except LintError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:  # the reader of stdout, such as head, has closed it
        _discard(sys.stdout)
        try:
            sys.stderr.flush()
        except OSError:
            _discard(sys.stderr)
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard(sys.stdout)
        return _fail("no space left to write the output to", 1)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with its help."""
    parser = _OptionParser(
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
        help="scripts and folders; by default, the working folder. A script is read together with "
        "the modules in its folder that it imports. A single - is standard input: --fix then "
        "prints the fixed text to stdout and the remaining findings to stderr, for editors.",
    )
    parser.add_argument(
        "--select",
        default="",
        metavar="RULES",
        help="only these rules: ids or their beginnings, separated by commas",
    )
    parser.add_argument("--ignore", default="", metavar="RULES", help="all rules but these")
    parser.add_argument(
        "--fix", action="store_true", help="rewrite files where the fix is certain ([--fix])"
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


class _OptionParser(argparse.ArgumentParser):
    """Raises LintError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise LintError(f"{message}. See `{self.prog} --help`.")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    options, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        raise LintError(f"Unknown option: {unknown[0]}. See `{parser.prog} --help`.")
    return options


def _lint(options: argparse.Namespace) -> int:
    """Read, fix and print as the options say, and return the exit code."""
    rules, out = select_rules(options.select, options.ignore), sys.stdout
    is_piped = options.paths == [Path("-")]
    if is_piped:
        name = Path("stdin")
        files = [Path.cwd() / name]
        contents = {files[0]: read_bounded(name, sys.stdin.buffer)}
        texts = {files[0]: decode(name, contents[files[0]])}
    else:
        files = python_files(options.paths or [Path(".")])
        contents, texts = _read(files)
    if not (options.fix or options.diff):
        result = read_many(files, Library(texts), rules)
    else:
        fixed, result = fix_many(files, rules, texts)
        if options.diff:
            library = Library(texts)
            out.writelines(_diff(p, library.text(p), text) for p, text in fixed.items())
            return _exit_code(result, bool(fixed))
        if is_piped:
            texts |= _print_fixed(files[0], fixed, contents[files[0]], result)
            out = sys.stderr
        else:
            texts |= _rewrite(fixed, contents, result)
    _print_result(result, Library(texts), rules, options.format, out)
    return _exit_code(result, bool(result.findings))


def _read(files: Sequence[Path]) -> tuple[dict[Path, bytes], dict[Path, str]]:
    """Return the contents and texts of files, read once so that all later steps agree on them."""
    contents, texts = {}, {}
    for path in files:
        with suppress(ReadError):  # read_many reports it
            content = read_content(path)
            contents[path], texts[path] = content, decode(path, content)
    return contents, texts


def _print_fixed(
    path: Path, fixed: Mapping[Path, str], before: bytes, result: LintResult
) -> Mapping[Path, str]:
    """Print the fixed text in its own encoding, or the input if nothing changed; return the fix."""
    content = before
    try:
        content = encode(path, fixed[path], before) if fixed else before
    except ReadError as error:
        result.exclude(path, str(error))
        fixed = {}
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return fixed


def _rewrite(
    fixed: Mapping[Path, str], contents: Mapping[Path, bytes], result: LintResult
) -> dict[Path, str]:
    """Rewrite files, and return the texts that were written, by path."""
    written = {}
    for path, text in fixed.items():
        try:
            rewrite(path, text, contents.get(path, b""))
            written[path] = text
        except (ReadError, WriteError) as error:
            result.exclude(path, str(error))
    if written:
        print(f"fixed {plural(len(written), 'file')}", file=sys.stderr)
    return written


def _diff(path: Path, old: str, new: str) -> str:
    name = display_path(path)
    # The lines of a patch end in line feeds; splitlines would also split at form feeds.
    lines = difflib.unified_diff([*io.StringIO(old)], [*io.StringIO(new)], name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _print_result(
    result: LintResult, library: Library, rules: Sequence[Rule], output_format: str, out: TextIO
) -> None:
    findings = result.sorted
    if output_format == "json":
        out.write(as_json(result))
    elif output_format == "github":
        out.write(as_github(findings))
    elif output_format == "sarif":
        out.write(as_sarif(findings, rules, _version()))
    else:
        in_color = out.isatty() and "NO_COLOR" not in os.environ
        out.write(as_text(findings, library, in_color))
    out.flush()
    for path, why in result.unread.items():
        print(f"error: {printable(why.replace(str(path), display_path(path)))}", file=sys.stderr)
    print(summary(result, rules), file=sys.stderr)


def _exit_code(result: LintResult, has_findings: bool) -> int:
    return 2 if result.unread else int(has_findings)


def _version() -> str:
    try:
        return version("onsight-lint")
    except PackageNotFoundError:  # a bare copy of the files
        return "unknown"


def _discard(stream: TextIO) -> None:
    """Discard what is still to be written: Python would try again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> int:
    print(f"error: {printable(message)}", file=sys.stderr)
    return code
