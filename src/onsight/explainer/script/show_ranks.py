"""The table of ranks that train together: how fast each is, and where its time goes."""

from rich.table import Table

from onsight.explainer.script.trace import RankFacts
from onsight.explainer.tracing.clock import PHASES
from onsight.words import step_times

_LEAST = 0.02  # of the time of any rank, for a phase to have a row
_MOST = 8  # ranks shown


def ranks_table(ranks: list[RankFacts]) -> Table:
    """A column for each of the first eight ranks: its speed, and its phases per step."""
    ranks = ranks[:_MOST]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("each rank, per step")
    for one in ranks:
        table.add_column(f"rank {one.rank}", justify="right")
    table.add_row("images/s", *(f"{one.images / one.seconds:,.0f}" for one in ranks))
    table.add_row("a step", *step_times(*(one.step_seconds for one in ranks)))
    for name, words in PHASES.items():
        if any(one.phases[name] >= _LEAST * one.seconds for one in ranks):
            table.add_row(words, *step_times(*(one.per_step(name) for one in ranks)))
    return table
