"""docs/architecture.md tells the truth: its tree is the tree, its phrases the files' own."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onsight"
PAGE = ROOT / "docs" / "architecture.md"


def documented():
    """{path: phrase} of the tree in the page."""
    block = PAGE.read_text(encoding="utf-8").partition("```tree\n")[2].partition("```")[0]
    rows = [re.match(r"(\S+)\s+(.+)", line) for line in block.splitlines() if line.strip()]
    return {row[1]: row[2] for row in rows}


def first_sentence(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


def test_every_file_stands_in_the_tree_with_its_own_first_line():
    files = {
        str(path.relative_to(PACKAGE)): first_sentence(path)
        for path in PACKAGE.rglob("*.py")
        if path.read_text(encoding="utf-8").strip()
    }
    assert documented() == files


def test_package_init_files_are_empty():
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent != PACKAGE:
            assert path.read_text(encoding="utf-8") == ""


def test_no_pickle_and_no_unsafe_loading_in_the_package():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text
        assert "torch.save(" not in text
        if path.name != "unpickle.py":  # reads the pickles of CIFAR without running anything
            assert not re.search(r"^\s*(import|from) pickle", text, re.MULTILINE)
