"""Rule: an `# onsight: ignore` that silences nothing, or names no rule."""

from collections.abc import Iterator

from onsight_lint.rule import Context, Mistake, Rule


def _check(context: Context) -> Iterator[Mistake]:
    """Nothing: `ignores.unused_ignores` finds these comments when every file has been read."""
    return iter(())


RULE = Rule(
    id="unused-ignore",
    title="A comment that silences nothing",
    why="The comment has no effect, and would hide the next mistake that is made there.",
    check=_check,
    pattern=r"onsight:",
)
