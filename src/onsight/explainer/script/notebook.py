"""A Jupyter notebook as a script: its code cells in order, without what only IPython knows."""

import ast
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.errors import DataError

SUFFIX = ".ipynb"
_CELL = f"{SUFFIX}, cell "

# Cell magics whose cell is ordinary Python all the same.
_AROUND = ("%%time", "%%timeit", "%%capture", "%%prun")
_MAGIC = re.compile(r"(?P<indent>\s*)(?P<target>[\w, .\[\]'\"]+=\s*)?(?P<magic>[!%?].*|.*\?)\s*$")
_SHOWN = 50  # characters of what is left out


@dataclass(frozen=True)
class Unit:
    """A piece of a script that is compiled on its own. name: in tracebacks and sites."""

    name: str
    text: str | bytes


@dataclass(frozen=True)
class Notebook:
    """The code cells of a notebook, counted from 1, and what was left out of them."""

    units: list[Unit] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def units_of(script: Path) -> list[Unit]:
    """The code of a script: a whole file, or the cells of a notebook. Raises DataError."""
    if script.suffix == SUFFIX:
        return read_notebook(script).units
    return [Unit(str(script), script.read_bytes())]


def whole_tree(script: Path) -> ast.Module:
    """The syntax tree of a script; a notebook's lines are those within each cell."""
    trees = [_parsed(one.text) for one in units_of(script)]
    return ast.Module([statement for tree in trees for statement in tree.body], [])


def source_of(file: str) -> str | bytes:
    """The text of a file, or of a cell if it is named as in sites."""
    if _CELL not in file:
        return Path(file).read_bytes()
    notebook, _, _ = file.rpartition(", cell ")
    return next((one.text for one in read_notebook(Path(notebook)).units if one.name == file), "")


def read_notebook(path: Path) -> Notebook:
    """The code of a notebook of format 4. Raises DataError if it cannot be used."""
    content = _content(path)
    notebook = Notebook()
    number = 0
    for cell in content["cells"]:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        source = cell.get("source", "")
        text = source if isinstance(source, str) else "".join(map(str, source))
        where = f"cell {number}"
        plain = _without_magics(text, where, notebook.left_out)
        try:
            _parsed(plain)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", 1)
            raise DataError(
                f"{path}, {where}, line {line}: Python cannot read this "
                f"({getattr(error, 'msg', error)}). Mend or empty the cell, then try again."
            ) from error
        notebook.units.append(Unit(f"{path}, {where}", plain))
    return notebook


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: it is not the JSON of a notebook ({error}). Open it in Jupyter "
            "and save it again, or export its code as a .py file."
        ) from error
    if isinstance(content, dict) and isinstance(content.get("worksheets"), list):
        raise DataError(
            f"{path} is a notebook of the former format {content.get('nbformat', 3)}: convert it "
            f"by `jupyter nbconvert --to notebook --nbformat 4 {path.name}`."
        )
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise DataError(f"{path} is damaged: it has no cells, as notebooks of format 4 have.")
    language = _language(content)
    if language != "python":
        raise DataError(f"{path} is a notebook in {language}; only Python can be explained.")
    return content


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name]).lower()
    return "python"


def _without_magics(text: str, where: str, left_out: list[str]) -> str:
    """A cell's Python, of as many lines; what is left out is added to the list."""
    first = text.lstrip().partition("\n")[0].strip()
    if first.startswith("%%"):
        left_out.append(f"{where}: {first[:_SHOWN]}")
        if first.split()[0] not in _AROUND:
            return ""
        text = text.replace(first, "", 1)
    if _is_python(text):  # a line that begins with % may be the rest of an expression
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = _MAGIC.match(line)
        if not found:
            continue
        left_out.append(f"{where}, line {number + 1}: {line.strip()[:_SHOWN]}")
        lines[number] = f"{found['indent']}{found['target'] or ''}" + (
            "[]" if found["target"] else "pass"
        )
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line, lines[number] = lines[number], ""
    return "\n".join(lines)


def _is_python(text: str) -> bool:
    try:
        _parsed(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _parsed(text: str | bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the script's own escape sequences
        return ast.parse(text)
