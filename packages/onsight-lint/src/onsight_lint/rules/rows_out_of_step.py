"""Rule on rows that are paired with the wrong ones: the order of two lists differs."""

from collections.abc import Iterator

from onsight_lint.context import Context
from onsight_lint.rows.appended import appended
from onsight_lint.rows.listed import listed
from onsight_lint.rows.shuffled import shuffled
from onsight_lint.rule import Mistake, Rule

_WHY = "Images are paired with the wrong labels, and nothing fails: the figures are worthless."


def _check(context: Context) -> Iterator[Mistake]:
    """Lists that are paired by position, where their orders can differ."""
    yield from appended(context)
    yield from listed(context)
    yield from shuffled(context)


RULE = Rule(
    "rows-out-of-step",
    "Rows paired with the wrong ones",
    _WHY,
    _check,
    r"listdir|scandir|glob\(|iterdir|shuffle|imread|Image\b|(label|target|image|path|[xy])s?\.append",
)
