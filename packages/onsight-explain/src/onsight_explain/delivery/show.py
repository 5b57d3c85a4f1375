"""Shows a mended script: its diff, what is left to the user, and what running it has proved."""

import statistics

from rich.console import Console
from rich.text import Text

from onsight_explain.delivery.delivery import Delivery
from onsight_explain.delivery.proof import Proof

_LOSSES = {
    "same": "the losses of the first steps are the same",
    "close": "the losses of the first steps agree within 2%",
    "alike": "the losses of the first steps are alike",
    "other": "the losses of the first steps are other ones",
    "not comparable": "the losses of the first steps cannot be compared",
}
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_delivery(found: Delivery, console: Console) -> None:
    """The diff, then one paragraph with the result."""
    console.print()
    for row in found.mended.diff(found.target.name).splitlines():
        console.print(Text(row, style=_COLOURS.get(row[:1], "")), soft_wrap=True)
    console.print()
    for line in found.mended.lines:
        if line.left:
            where = f"{line.site}: " if line.site else ""
            console.print(f"{where}left to you ({line.left}): {line.text}", style="yellow")
    style = "bold" if found.is_sound else "bold red"
    console.print(delivery_words(found), style=style)


def delivery_words(found: Delivery) -> str:
    """What was written, and what running it has shown."""
    name, script = found.target.name, found.mended.script.name
    if found.proof is None:
        return (
            f"{name} was written, but computes what {script} does: its comments say what to change"
        )
    if found.proof.problem:
        return f"{name} was not written: {found.proof.problem}"
    shown = f"{_rates(found.proof, script, name)}; {_LOSSES[found.proof.losses]}"
    if not found.is_sound:
        return f"{name} was not written: {shown}"
    start = "".join(f" {one[0].upper()}{one[1:]}." for one in found.mended.outside)
    return f"{found.target} was written. {shown}.{start}"


def _rates(proof: Proof, script: str, name: str) -> str:
    before, after = (statistics.median(one) for one in (proof.rounds.plain, proof.rounds.changed))
    interval = proof.rounds.interval
    ratio = f"{interval}" if interval.is_shown else f"no gain was shown ({interval})"
    return f"In turns, {script} made {before:,.0f} images/s and {name} {after:,.0f}: {ratio}"
