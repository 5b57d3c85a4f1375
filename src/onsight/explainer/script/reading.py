"""The mistakes that reading a script or a notebook reveals."""

import tempfile
from dataclasses import replace
from pathlib import Path

from onsight.errors import DataError
from onsight.explainer.script.notebook import SUFFIX, read_notebook
from onsight_lint.errors import ReadError
from onsight_lint.read import Finding, read_script

_OF_FILES = "main-guard"  # a notebook is never imported


def findings_in(script: Path) -> list[Finding]:
    """The mistakes in a script; of a notebook, with the cell as the file. Raises DataError."""
    if script.suffix != SUFFIX:
        return _read(script)
    units = read_notebook(script).units
    texts = [str(one.text) for one in units]
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        joined = Path(folder) / "notebook.py"
        joined.write_text("\n".join(texts) + "\n", encoding="utf-8")
        found = [one for one in _read(joined) if one.file == joined]
    places = [
        (unit.name, line)
        for unit, text in zip(units, texts, strict=True)
        for line in range(1, text.count("\n") + 2)
    ]
    return [
        replace(one, file=Path(places[one.line - 1][0]), line=places[one.line - 1][1])
        for one in found
        if one.rule != _OF_FILES
    ]


def _read(script: Path) -> list[Finding]:
    try:
        return read_script(script)
    except ReadError as error:
        raise DataError(str(error)) from error
