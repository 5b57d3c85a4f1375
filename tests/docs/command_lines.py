"""The `onsight` commands of a page: whether their options exist, without running them."""

import re
import shlex
from collections.abc import Iterator
from functools import cache

from blocks import Block
from commands_page import flags

from onsight.cli import make_app

_PROGRAMS = ("onsight", "onsight-lint", "onsight-explain")
_FENCED = re.compile(r"^ *```.*?^ *```[^\n]*$", re.DOTALL | re.MULTILINE)
known_flags = cache(flags)
known_commands = cache(lambda: {*make_app()})


def faulty_commands(page: str, blocks: list[Block]) -> list[str]:
    """Return what is wrong with the commands in a page's blocks and in its `code`."""
    faults = []
    for block in blocks:
        if block.language in ("sh", "bash", "console"):
            text = re.sub(r"\\\n(> )?", " ", block.text)
            for line in text.splitlines():
                if block.language != "console" or line.startswith("$ "):
                    faults += [f"in the block of line {block.line}: {f}" for f in _faults(line)]
    prose = _FENCED.sub("", page)
    for code in re.findall(r"`(onsight(?:-lint|-explain)? [^`]+)`", prose):
        faults += _faults(" ".join(code.split()))
    return faults


def _faults(line: str) -> Iterator[str]:
    for command in _commands(line):
        program, *words = command
        name = program
        if program == "onsight":
            name = next((word for word in words if not word.startswith("-")), "")
            if not name:
                continue
            if not re.fullmatch(r"[a-z][a-z-]*", name):  # a placeholder such as COMMAND
                continue
            if name not in known_commands():
                yield f"there is no command onsight {name}"
                continue
            is_script = any(word.endswith((".py", ".ipynb")) for word in words)
            name = "onsight-explain" if name == "explain" and is_script else name
        for word in words:
            flag = word.partition("=")[0]
            if re.match(r"--?[a-zA-Z]", flag) and flag not in known_flags(name):
                yield f"{program} {name} has no option {flag}"


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of every Onsight command in a line of shell, up to a lone `--`."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = [*lexer]
    except ValueError:  # a quote that another line closes
        words = line.removeprefix("$ ").split("#")[0].split()
    command: list[str] | None = None
    for word in [*words, ";"]:
        if re.fullmatch(r"[;|&<>()]+", word) or word == "--":
            if command:
                yield command
            command = None
        elif command is not None:
            command.append(word)
        elif word in _PROGRAMS:
            command = [word]
