"""The command `onsight lint`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def lint(
    *paths: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    select: Annotated[
        str, Parameter(help="Only these rules: ids or their beginnings, separated by commas.")
    ] = "",
    ignore: Annotated[
        str,
        Parameter(
            help="All rules but these. A comment `# onsight: ignore[id]` silences a rule on its "
            "line, `# onsight: ignore` all rules, and `# onsight: ignore-file` a whole file."
        ),
    ] = "",
    fix: Annotated[
        bool, Parameter(negative="", help="Rewrite files where the mend is certain ([--fix]).")
    ] = False,
    diff: Annotated[
        bool, Parameter(negative="", help="Print what --fix would change, and change nothing.")
    ] = False,
    format_: Annotated[
        Literal["text", "json", "github", "sarif"],
        Parameter(name="--format", help="For people, programs, pull requests, or code scanning."),
    ] = "text",
) -> None:
    """Find mistakes in training scripts by reading them: nothing is run, no torch needed.

    These are mistakes that a run does not reveal, such as an evaluation in training mode. Each is
    shown with the corrected line; what is marked [--fix] can be corrected by --fix. Exit code 0: no
    mistakes; 1: mistakes; 2: a file that cannot be read.

    Parameters
    ----------
    paths
        Scripts and folders; the working folder, if none are named. Each script is read together
        with the modules of its own folder that it imports. A single - stands for standard input:
        --fix then prints the mended text, as an editor wants it, and what is left to stderr.
    """
    from onsight.errors import ConfigError
    from onsight.lint.formats.data import as_github, as_json
    from onsight.lint.formats.sarif import as_sarif
    from onsight.lint.formats.text import as_text, summary
    from onsight.lint.library import Library
    from onsight.lint.many import read_many
    from onsight.lint.mend import difference, mended, rewrite
    from onsight.lint.paths import python_files, shown
    from onsight.lint.table import chosen
    from onsight.version import onsight_version
    from onsight.words import plural

    rules = chosen(select, ignore)
    for word in map(str, paths):
        if word.startswith("-") and word != "-":
            raise ConfigError(f"Unknown option: {word}. See `onsight lint --help`.")
    piped = paths == (Path("-"),)
    texts = {Path.cwd() / "stdin": sys.stdin.read()} if piped else {}
    files = list(texts) if piped else python_files(paths or (Path("."),))
    if diff:
        changed, readings = mended(files, rules, texts)
        sys.stdout.write("".join(difference(*one, texts) for one in changed.items()))
        raise SystemExit(2 if readings.unread else 1 if changed else 0)
    if fix:
        changed, readings = mended(files, rules, texts)
        texts |= changed if piped else {}
        for one in changed.items() if not piped else ():
            rewrite(*one)
        if changed:
            print(f"mended {plural(len(changed), 'file')}", file=sys.stderr)
    library, out = Library(texts), sys.stdout
    if fix and piped:
        sys.stdout.write(texts[files[0]])
        out = sys.stderr
    if not fix:
        readings = read_many(files, library, rules)
    found = readings.sorted
    if format_ == "json":
        out.write(as_json(readings))
    elif format_ == "github":
        out.write(as_github(found))
    elif format_ == "sarif":
        out.write(as_sarif(found, rules, onsight_version()))
    else:
        colour = out.isatty() and "NO_COLOR" not in os.environ
        out.write(as_text(found, library, colour))
    out.flush()
    for path, said in readings.unread.items():
        print(f"error: {said.replace(str(path), shown(path))}", file=sys.stderr)
    print(summary(readings), file=sys.stderr)
    raise SystemExit(2 if readings.unread else 1 if found else 0)
