"""What limits a comparison, in sentences."""

from collections.abc import Iterator, Sequence

from onsight.report.comparison.held_out import HeldOut
from onsight.report.comparison.pairing import LeftOut, Pairing
from onsight.report.comparison.settings import Setting
from onsight.words import listed, plural

_SPLITTING = ("validation_fraction", "test_fraction")


def notes_on(
    runs: Sequence[HeldOut], pairing: Pairing, settings: Sequence[Setting]
) -> Iterator[str]:
    """Images that are not compared and why, and what the figures do not say."""
    for run, left_out in zip(runs, pairing.left_out, strict=True):
        if sum(left_out):
            yield _left_out_sentence(run, left_out)
    if any(map(sum, pairing.left_out)):
        yield from _split_sentence(runs, settings)
    selected = [run.name for run in runs if run.split == "validation"]
    if selected:
        yield (
            f"the images of {listed(selected)} also chose which epoch to keep, which flatters it"
        )
    if not all(any(run.digests) for run in runs):
        yield "an older run has no digests, so images were paired by their paths"


def _left_out_sentence(run: HeldOut, left_out: LeftOut) -> str:
    parts = [
        (left_out.seen, "seen by another run in training or selection"),
        (left_out.relabelled, "labelled otherwise in another run"),
        (left_out.absent, "not held out by every run"),
    ]
    reasons = listed([f"{count:,} {reason}" for count, reason in parts if count])
    images = plural(len(run), "held-out image")
    return f"of the {images} of {run.name}, {sum(left_out):,} not compared: {reasons}"


def _split_sentence(runs: Sequence[HeldOut], settings: Sequence[Setting]) -> Iterator[str]:
    found = {setting.name: setting.values for setting in settings}
    parts = [
        f"{name.replace('_', ' ')} {' / '.join(str(value) for value in found[name])}"
        for name in _SPLITTING
        if name in found
    ]
    if parts:
        yield f"the runs split their images differently: {listed(parts)}"
