"""What an export prints: where the file is, how it was proven, and how fast it is."""

from collections.abc import Iterator

from onsight.export.export import Exported, proof_place
from onsight.words import data_size, percent


def lines(exported: Exported) -> Iterator[str]:
    """The lines for people."""
    proof, facts = exported.proof, exported.facts
    agree, n = proof.agree, proof.images
    yield (
        f"{agree:,} of {n:,} held-out images have the same label as in torch "
        f"({percent(agree / n)}); probabilities differ by {proof.largest_difference:.1e} at most"
    )
    loss, low, high = (100 * share for share in proof.loss)
    counts = proof.right
    yield (
        f"accuracy {percent(facts['accuracy'])}, in torch {percent(facts['accuracy_in_torch'])}: "
        f"{loss:.2f} points lost (95% interval {low:.2f} to {high:.2f}, n = {n:,}; "
        f"{counts.only_first:,} right only in torch, {counts.only_second:,} only exported)"
    )
    for speed in proof.speeds:
        batch = "1 image" if speed.batch == 1 else f"{speed.batch:,} images"
        yield (
            f"{batch} at once: {speed.second_per_second:,.0f} images/s, in torch "
            f"{speed.first_per_second:,.0f}: {speed.times:.2f} times as fast "
            f"({speed.low:.2f} to {speed.high:.2f}), {facts['threads']} threads"
        )
    yield f"size: {data_size(facts['bytes'])}, the model file {data_size(facts['model_bytes'])}"
    yield f"proof: {proof_place(exported.path)}"
    yield f"exported: {exported.path}"
