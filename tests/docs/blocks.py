"""Fenced blocks of a page: reading them, running them, and comparing what they print.

Blocks of a page run in order in one folder. `python` blocks share one process; the `text` block
right after one is its output. The lines `$ command` of `console` blocks are run by bash, and must
exit with 0, or with 2 if `# exit 2` follows, also on the next line; the lines below are the output,
in which digits are ignored. In both, `...` stands for anything. A block with a title, as in
```` ```python title="train.py" ````, is saved as that file instead. Other blocks, such as
`sh` and `py`, are not run.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

COMMAND_SECONDS = 120
_FENCE = re.compile(r"^( *)(```+|~~~+) *([^\s`]*)(.*)$")
_PYTHON = """
import contextlib, json, linecache, os, sys, tempfile, traceback
answers, names = os.fdopen(os.dup(1), "w"), {"__name__": "__main__"}
for request in sys.stdin:
    code, page, line = json.loads(request)
    code = "\\n" * line + code  # so that tracebacks have the page's line numbers
    linecache.cache[page] = (len(code), None, code.splitlines(True), page)
    failed = None
    with tempfile.TemporaryFile("w+") as output:
        os.dup2(output.fileno(), 1)
        try:
            exec(compile(code, page, "exec"), names)
        except BaseException:
            failed = traceback.format_exc()
        sys.stdout.flush()
        output.seek(0)
        answers.write(json.dumps([output.read(), failed]) + "\\n")
        answers.flush()
"""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str  # of the fence, which is the name of the file to save the block as
    text: str
    line: int  # of its fence, from 1

    @property
    def is_run(self) -> bool:
        """Whether the block is run."""
        return self.language in ("python", "console") and not self.title

    @property
    def commands(self) -> list[tuple[int, str, str]]:
        """(line, command, its output) for each command of a console block."""
        found: list[tuple[int, str, str]] = []
        continued = False
        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            if line.startswith("$ "):
                found.append((number, line[2:], ""))
            elif not found:
                raise Mismatch(number, "output before the first `$ command`", line, "")
            elif continued:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{line.removeprefix('> ')}", "")
            else:
                found[-1] = (*found[-1][:2], found[-1][2] + line + "\n")
            is_command = line.startswith("$ ") or continued
            continued = is_command and line.endswith("\\")
        return found


class Mismatch(AssertionError):
    """A block does not do what the page shows."""

    def __init__(self, line: int, what: str, expected: str, actual: str) -> None:
        super().__init__(
            f"line {line}: {what}\n--- expected ---\n{expected}\n--- actual ---\n{actual}"
        )
        self.line = line


def read_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, indented ones included."""
    blocks: list[Block] = []
    lines: list[str] = []
    opened = None
    for number, line in enumerate(page.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines, start = fence, [], number
        elif fence and fence[2].startswith(opened[2]) and not (fence[3] or fence[4].strip()):
            title = re.search(r'title="([^"]+)"', opened[4])
            blocks.append(Block(opened[3], title[1] if title else "", "".join(lines), start))
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]) + "\n")
    assert opened is None, f"line {start}: the block is never closed"
    return blocks


def matches(shown: str, actual: str, *, ignores_digits: bool) -> bool:
    """Return whether an output is the one that a page shows."""
    wanted, real = (_plain(text, ignores_digits) for text in (shown, actual))
    parts = []
    for line in wanted.split("\n"):
        if line.strip() == "...":
            parts.append(r"(?:.*\n)?")  # whole lines, or none
        else:
            parts.append(".*".join(re.escape(part) for part in line.split("...")) + "\n")
    return re.fullmatch("".join(parts), f"{real}\n", re.DOTALL) is not None


def _plain(text: str, ignores_digits: bool) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    if not ignores_digits:
        return lines
    return re.sub(r"[ \t]+", " ", re.sub(r"\d+(?:[.,]\d+)*", "0", lines))


class PageRun:
    """The folder and the processes in which the blocks of a page run."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        """Begin in a folder; the name is that of the page, for tracebacks."""
        self.name, self.folder, self.environment = name, folder, environment
        self._groups: list[int] = []
        self._python: subprocess.Popen[str] | None = None

    def run(self, blocks: list[Block]) -> None:
        """Run the blocks. Raises Mismatch for the first that does not do what the page shows."""
        try:
            for block, following in zip_longest(blocks, blocks[1:]):
                if block.title:
                    path = self.folder / block.title
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(block.text, encoding="utf-8")
                elif block.language == "python":
                    is_shown = following is not None and following.language == "text"
                    self._run_python(block, following if is_shown else None)
                elif block.language == "console":
                    for line, command, shown in block.commands:
                        self._run_command(line, command, shown)
        finally:
            self._end()

    def _run_python(self, block: Block, shown: Block | None) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _PYTHON],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
            self._groups.append(self._python.pid)
        assert self._python.stdin
        assert self._python.stdout
        self._python.stdin.write(json.dumps([block.text, self.name, block.line]) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        output, failed = json.loads(answer) if answer else ("", "the process ended")
        if failed:
            raise Mismatch(block.line, "the Python block failed", block.text, output + failed)
        if shown and not matches(shown.text, output, ignores_digits=False):
            raise Mismatch(
                shown.line, "the Python block printed something else", shown.text, output
            )

    def _run_command(self, line: int, command: str, shown: str) -> None:
        if ending := re.match(r"# exit \d+\n", shown):
            shown = shown[ending.end() :]
            command = f"{command}  {ending[0].strip()}"
        ending = re.search(r"\s# exit (\d+)\s*$", command)
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                ["bash", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,  # a file, because a server that goes on would keep a pipe open
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            try:
                code = process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                code = -1
            output.seek(0)
            actual = output.read()
        wanted = int(ending[1]) if ending else 0
        if code == -1:
            raise Mismatch(line, f"`{command}` took over {COMMAND_SECONDS} s", shown, actual)
        if code != wanted:
            raise Mismatch(line, f"`{command}` exited with {code}, not {wanted}", shown, actual)
        if shown and not matches(shown, actual, ignores_digits=True):
            raise Mismatch(line, f"`{command}` printed something else", shown, actual)

    def _end(self) -> None:
        """End what the blocks started, servers included."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if self._python:
            self._python.communicate()
