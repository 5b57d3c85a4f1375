"""docs/tutorial.md proves what it says: every block runs, and prints what the page shows.

The blocks of a section run one after another, in one folder per section. A Python block prints
what follows its `# ->`; one that begins with `# NAME.py` is saved as that file, for a console
block to run. The lines below a console block's `$ command` are its output. `...` matches anything.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
LANGUAGES = {"python", "console"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, section, and the line of its fence."""

    language: str
    text: str
    section: str
    line: int

    def __str__(self):
        return f"the block of line {self.line}"

    @property
    def file_name(self):
        """The name of the file to save this block as, if any."""
        named = re.match(r"# (\w+\.py)\n", self.text) if self.language == "python" else None
        return named[1] if named else None

    @property
    def printed(self):
        """What a Python block should print, according to the page."""
        return "\n".join(re.findall(r"# -> (.+)", self.text))

    @property
    def commands(self):
        """(command, its output) for each command of a console block."""
        return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", self.text, re.MULTILINE)


def slug(heading):
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def read_blocks(page):
    """All fenced blocks of a page, in order."""
    blocks, section, opened, lines = [], "", None, []
    for number, line in enumerate(page.splitlines(), 1):
        if opened is None and line.startswith("## "):
            section = line[3:]
        elif line.startswith("```") and opened is None:
            opened, lines = (line[3:].strip(), number), []
        elif line == "```":
            blocks.append(Block(opened[0], "".join(lines), section, opened[1]))
            opened = None
        elif opened is not None:
            lines.append(line + "\n")
    assert opened is None, f"the block of line {opened} is never closed"
    return blocks


# A worker that ends while its parent does may cause a false alarm of Python's resource tracker.
_QUIET = "ignore::UserWarning:multiprocessing.resource_tracker"

BLOCKS = read_blocks(PAGE.read_text(encoding="utf-8"))


def assert_prints(real, shown):
    """The output matches what is shown, where `...` matches anything."""
    wanted = ".*".join(re.escape(part) for part in plain(shown).split("..."))
    matched = re.fullmatch(wanted, plain(real), re.DOTALL) is not None
    assert matched, f"shown:\n{shown}\nreal:\n{real}"


def plain(text):
    """A text without leading and trailing white space on its lines."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


class Section:
    """A section's folder, and the names defined by its Python blocks."""

    def __init__(self, folder):
        self.folder = folder
        self.names = {"__name__": "tutorial"}

    def run(self, block):
        """Run a block and compare what it prints with what the page shows."""
        {"python": self._run_python, "console": self._run_commands}[block.language](block)

    def _run_python(self, block):
        if block.file_name:
            (self.folder / block.file_name).write_text(block.text, encoding="utf-8")
            return
        lines = "\n" * block.line + block.text  # so that tracebacks show the page's line numbers
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.chdir(self.folder):
            exec(compile(lines, str(PAGE), "exec"), self.names)
        assert_prints(output.getvalue(), block.printed)

    def _run_commands(self, block):
        for command, shown in block.commands:
            done = subprocess.run(
                command,
                shell=True,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                env=os.environ | {"PYTHONWARNINGS": _QUIET},
            )
            assert_prints(done.stdout, shown)
            assert (done.returncode != 0) == ("error: " in shown), done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the `onsight` and `python` under test."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in {"onsight": "-m onsight", "python": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


# These train on the whole demo, start ranks, or time what an explanation tries.
SLOW = ("1. ", "6. ", "8. ")
SECTIONS = [
    pytest.param(name, id=slug(name), marks=[pytest.mark.soak] if name.startswith(SLOW) else [])
    for name in dict.fromkeys(block.section for block in BLOCKS)
]


@pytest.mark.parametrize("name", SECTIONS)
def test_section(name, tmp_path, programs, monkeypatch):
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    section = Section(tmp_path)
    for block in BLOCKS:
        if block.section == name:
            try:
                section.run(block)
            except Exception as error:
                error.add_note(f"in the block of line {block.line}")
                raise


def test_no_block_is_left_unrun():
    page = PAGE.read_text(encoding="utf-8")
    fences = re.findall(r"^\s*(?:```|~~~)", page, re.MULTILINE)
    assert len(fences) == 2 * len(BLOCKS) > 0, "a fence that is not read as one"
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"nothing runs {block}"
        assert block.section, f"{block} is outside any section"


def test_every_python_block_asserts_its_claim():
    for block in BLOCKS:
        if block.language == "python":
            assert re.search(r"^ *assert ", block.text, re.MULTILINE), str(block)


def test_every_line_of_a_console_block_belongs_to_a_command():
    for block in BLOCKS:
        if block.language == "console":
            found = "".join(f"$ {command}\n{shown}" for command, shown in block.commands)
            assert found == block.text, str(block)


def test_a_saved_file_is_run():
    for block in BLOCKS:
        if block.file_name:
            assert any(
                f"python {block.file_name}" in command
                for other in BLOCKS
                if (other.language, other.section) == ("console", block.section)
                for command, _ in other.commands
            ), f"nothing runs {block.file_name}"


def test_links_lead_somewhere():
    page = PAGE.read_text(encoding="utf-8")
    anchors = {slug(heading) for heading in re.findall(r"^##+ (.+)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_what_is_shown_must_be_what_is_printed():
    assert_prints("device: cpu\nslow\n", "device: ...\nslow")
    assert_prints("a\nb\nc\n", "a\n...\n")
    for shown in ("device: cpu", "device: ...\nfast", "slow\n..."):
        with pytest.raises(AssertionError):
            assert_prints("device: cpu\nslow\n", shown)
