"""Write docs/files.md: every file of the package with the first line of its docstring.

python scripts/list_files.py
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onsight"
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Every file

Written by `scripts/list_files.py` from the first line of each file; a test keeps it current.
How they fit together: [architecture.md](architecture.md).
"""


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def page() -> str:
    """The page's text: a section for each folder, a row for each file that is not empty."""
    sections: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.read_text(encoding="utf-8").strip():
            folder = path.parent.relative_to(PACKAGE.parent).as_posix()
            sections.setdefault(folder, []).append(f"| `{path.name}` | {first_sentence(path)} |")
    parts = [
        "\n".join([f"## {folder}", "", "| file | what it is |", "| --- | --- |", *rows])
        for folder, rows in sections.items()
    ]
    return "\n".join([HEAD, *(f"{part}\n" for part in parts)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
