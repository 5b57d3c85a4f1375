"""A folder of images whose labels are in their names, such as cat_001.jpg."""

import os
import re
from pathlib import Path

from onsight.data.index import Index, Problem, Row
from onsight.data.sources.folder import FileReader, read_unlabelled
from onsight.data.sources.source import Source, fingerprint, found_line
from onsight.errors import ConfigError, DataError
from onsight.words import plural


def read_labelled_names(folder: Path, pattern: str) -> Source:
    """Every file below a folder, with the label that a regular expression finds in its path.

    The first parenthesis is the label, or else all that matches; a file in which nothing is found
    becomes a problem. Raises ConfigError for a pattern that cannot be used, DataError if nothing is
    found in any path.
    """
    try:
        label = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--label-from {pattern} is no regular expression: {error}") from error
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder, whose file names --label-from could search")
    files = read_unlabelled(folder)
    rows, problems = [], list(files.problems)
    for path in files.index.locators:
        found = label.search(path)
        name = (found[1] if label.groups else found[0]) if found else ""
        if name:
            rows.append(Row(path, name))
        else:
            problems.append(Problem(path, "scan", f"--label-from {pattern} finds no label in it"))
    if not rows:
        first = files.index.locators[0]
        raise DataError(f"--label-from {pattern} finds no label in any path, such as {first}")
    index = Index.of(rows)
    size = plural(len(rows) + len(problems), "file")
    root = Path(os.path.realpath(folder))
    return Source(
        kind="names",
        root=root,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=fingerprint(["names", files.fingerprint, pattern]),
        found=found_line("images with labels in their names", index, size),
        problems=problems,
    )
