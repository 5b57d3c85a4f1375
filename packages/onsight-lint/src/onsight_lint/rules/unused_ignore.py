"""Rule: an `# onsight: ignore` that silences nothing, or names no rule."""

from collections.abc import Iterator

from onsight_lint.context import Context
from onsight_lint.rule import Mistake, Rule


def _check(context: Context) -> Iterator[Mistake]:
    """Nothing: which comments are of no use is known when every file has been read."""
    return iter(())


RULE = Rule(
    id="unused-ignore",
    title="a comment that silences nothing",
    why="It silences nothing now, and would hide the next mistake that is made there.",
    check=_check,
    words=r"onsight:",
)
