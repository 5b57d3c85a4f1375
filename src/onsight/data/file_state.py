"""What changes about a file when its content does."""

import os
from pathlib import Path


def stat_facts(path: Path) -> tuple[object, ...]:
    """A file's path, and what changes when its content does."""
    return str(path), *_state(path.stat())


def identity(path: str, facts: os.stat_result) -> bytes:
    """The same as bytes."""
    text = "".join(f"{one}\0" for one in (path, *_state(facts)))
    return text.encode("utf-8", "surrogateescape")


def _state(facts: os.stat_result) -> tuple[int, int, int, int]:
    # A program can set the time of modification back, but neither of the last two.
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
