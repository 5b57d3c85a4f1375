"""The README is short, and no page links to what is missing in the repository.

The links of the site are checked when it is built (`scripts/docs/links.py`).
"""

from pathlib import Path

import pytest
from blocks import read_blocks
from links import broken_file_links

ROOT = Path(__file__).parents[2]
FOLDERS = ["", "docs/**/", "packages/*/", "benchmarks/"]
PAGES = [page for folder in FOLDERS for page in sorted(ROOT.glob(f"{folder}*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert broken_file_links(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    links = "[a](page.md#what-it-is) [b](#gone) [c](gone.md) [d](https://example.org/x)"
    page.write_text(f"# What it is\n{links}\n```\n[e](in-code.md)\n```\n", encoding="utf-8")
    assert broken_file_links(page) == ["#gone", "gone.md"]


def test_the_commands_of_the_readme_are_run_on_the_start_page():
    """`make docs-check` runs that page."""
    shown = (line for block in blocks_of("README.md", "sh") for line in block.text.splitlines())
    commands = [line.partition("#")[0].strip() for line in shown if line.startswith("onsight ")]
    blocks = blocks_of("docs/start.md", "console")
    assert len(commands) == 4
    assert set(commands) <= {command for block in blocks for _, command, _ in block.commands}


def blocks_of(page, language):
    blocks = read_blocks((ROOT / page).read_text(encoding="utf-8"))
    return [block for block in blocks if block.language == language]


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
