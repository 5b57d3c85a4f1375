"""The proof of an export: the model and the exported file on the same images.

They are held-out images, so that the accuracies can be compared too, or training images where the
model was trained on all.

B images, C channels, H height, W width.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from onsight.data.loader import Batch, Images
from onsight.data.pixels import Pixels
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import DataError, ExportMismatch
from onsight.evaluation.statistics import PairedCounts, difference_interval
from onsight.export.format import Classify
from onsight.inference.held_out import HeldOutImages, open_held_out, training_source
from onsight.inference.predictor import Predictor
from onsight.report.console import Reporter
from onsight.text import percent
from onsight_explain.paired_timing import PairedRounds

MAX_DIFFERENCE = 1e-3
"""The largest allowed difference of a probability, in fp32.

Labels can then differ only where the probabilities of two classes are within twice this value. Two
correct runtimes add in different orders and differ by about 1e-6; a wrong resize, channel order or
mean causes far larger differences.
"""
CALIBRATION_IMAGES = 256
_MIN_SECONDS, _MIN_ROUNDS, _MAX_ROUNDS = 2.0, 5, 200


class Speed(NamedTuple):
    """Images per second of the model (first) and the exported file (second)."""

    batch: int  # images per call
    first_per_second: float  # median over the rounds
    second_per_second: float  # median over the rounds
    times: float  # how many times as fast the second is: the median of the rounds' ratios
    low: float  # lower quartile of the ratios
    high: float  # upper quartile of the ratios


class OwnPrecision(NamedTuple):
    """The exported file compared with the model in the precision that it predicts in."""

    precision: str
    images: int  # the first of the proof's
    agree: int  # images with the same label
    largest_difference: float  # the largest difference of any probability


@dataclass(frozen=True)
class ExportProof:
    """The model in torch, in fp32, compared with the exported file."""

    images: int
    agree: int  # images with the same label
    largest_difference: float  # the largest difference of any probability
    # Images that both, only torch, only the file, and neither got right; None if not held out.
    right: PairedCounts | None
    speeds: tuple[Speed, ...] = ()
    own: OwnPrecision | None = None  # if the model does not predict in fp32

    def facts(self) -> dict[str, Any]:
        """Return plain values for the proof file; None for accuracies that are unknown."""
        counts = self.right
        loss, low, high = _loss(counts) if counts else (None, None, None)
        return {
            "images": self.images,
            "agree": self.agree,
            "largest_difference": self.largest_difference,
            "accuracy": counts and (counts.both_right + counts.only_second) / counts.n,
            "accuracy_in_torch": counts and (counts.both_right + counts.only_first) / counts.n,
            "accuracy_lost": loss,
            "accuracy_lost_low": low,
            "accuracy_lost_high": high,
            "right": counts and counts._asdict(),
            "speeds": [speed._asdict() for speed in self.speeds],
            "own_precision": self.own and self.own._asdict(),
        }

    def lines(self, threads: int) -> Iterator[str]:
        """Yield the lines that summarise the proof for the user."""
        n, counts, facts = self.images, self.right, self.facts()
        yield (
            f"labels: {self.agree:,} of {n:,} {'held-out' if counts else 'training'} images have "
            f"the same label as in torch in fp32 ({percent(self.agree / n)}); probabilities "
            f"differ by {self.largest_difference:.1e} at most"
        )
        if self.own:
            yield (
                f"precision: `onsight predict` on the model computes in {self.own.precision}, "
                f"where {self.own.agree:,} of {self.own.images:,} images have the same label, and "
                f"probabilities differ by up to {100 * self.own.largest_difference:.2g} points"
            )
        if counts:
            loss, low, high = (100 * value for value in _loss(counts))
            yield (
                f"accuracy: {percent(facts['accuracy'])}, in torch "
                f"{percent(facts['accuracy_in_torch'])}: {loss:.2f} points lost (95% CI "
                f"{low:.2f} to {high:.2f}, n = {n:,}; {counts.only_first:,} correct only in torch, "
                f"{counts.only_second:,} only in the exported file)"
            )
        else:
            yield "accuracy: not compared, as the model was trained on all of these images"
        for speed in self.speeds:
            batch = "1 image" if speed.batch == 1 else f"{speed.batch:,} images"
            yield (
                f"speed, {batch} at once: {speed.second_per_second:,.0f} images/s, in torch "
                f"{speed.first_per_second:,.0f}: {speed.times:.2f} times as fast "
                f"(median round; quartiles {speed.low:.2f} to {speed.high:.2f}), {threads} threads"
            )


def open_proof_images(
    predictor: Predictor,
    model: Path,
    on: str | None,
    data_format: str,
    cache: Path | None,
    reporter: Reporter,
) -> HeldOutImages:
    """Open images from `on` or else the run's DATA.

    model: where the predictor was loaded from.
    There are no `ids` if the model was trained on all labelled ones. Raises DataError if there are
    no images.
    """
    try:
        if on is None:
            source = training_source(predictor, model, cache)
        else:
            source = find_source(on, ReadOptions(data_format), cache)
        held_out = open_held_out(predictor, source, cache, reporter)
    except DataError as error:
        raise DataError(
            f"there are no images to prove the export on: {error}\n"
            "Give labelled images, if possible some that the model was not trained on: --on DATA"
        ) from error
    if on is None and len(held_out.seen) == 0:
        raise DataError(
            f"{source.root} has changed: it has none of the images that trained the model. "
            "Give labelled images to prove the export on: --on DATA"
        )
    return held_out


def read_calibration_images(
    predictor: Predictor,
    model: Path,
    held_out: HeldOutImages,
    cache: Path | None,
    reporter: Reporter,
) -> Pixels:
    """Read training images (n, H, W, C), from the proof's DATA or else the run's."""
    if len(held_out.seen) == 0:
        try:
            source = training_source(predictor, model, cache)
            held_out = open_held_out(predictor, source, cache, reporter)
        except DataError as error:
            raise DataError(
                f"--int8 needs the training images: {error}\nGive data with them: --on DATA"
            ) from error
    if len(held_out.seen) == 0:
        raise DataError("--int8 needs the training images, but their DATA has changed")
    sample = held_out.seen[:CALIBRATION_IMAGES]  # in order of digests, not of the data
    return Images.of(held_out.pack).gather(sample).images.numpy()


def compare_outputs(
    in_torch: Classify,
    exported: Classify,
    batches: Iterable[Batch],
    on_batch: Callable[[int], None] = lambda count: None,
) -> ExportProof:
    """Classify every image with both classifiers and compare; there must be at least one image."""
    labels_in_torch, labels_exported, differences, rights = [], [], [0.0], []
    for batch in batches:
        images, labels = batch.images.numpy(), batch.labels.numpy()
        expected, actual = in_torch(images), exported(images)
        differences.append(float(np.abs(expected - actual).max()))
        labels_in_torch.append(expected.argmax(1))
        labels_exported.append(actual.argmax(1))
        rights.append((labels_in_torch[-1] == labels, labels_exported[-1] == labels))
        on_batch(len(labels))
    right_in_torch, right_exported = map(np.concatenate, zip(*rights, strict=True))
    same = np.concatenate(labels_in_torch) == np.concatenate(labels_exported)
    return ExportProof(
        images=len(same),
        agree=int(same.sum()),
        largest_difference=float(np.max(differences)),  # NaN if there is one
        right=PairedCounts.of(right_in_torch, right_exported),
    )


def check_difference(proof: ExportProof, to: str) -> None:
    """Raise ExportMismatch if any probability differs by more than MAX_DIFFERENCE."""
    if not proof.largest_difference <= MAX_DIFFERENCE:  # NaN fails too
        raise ExportMismatch(
            f"the export to {to} was rejected, and nothing was written: probabilities differ from "
            f"torch's by up to {proof.largest_difference:.2g} (at most {MAX_DIFFERENCE:g} is "
            f"allowed), and {proof.agree:,} of {proof.images:,} labels agree"
        )


def check_loss(proof: ExportProof, max_loss: float) -> None:
    """Raise ExportMismatch unless the interval shows that at most max_loss points are lost."""
    assert proof.right  # `export` requires held-out images
    loss, low, high = (100 * value for value in _loss(proof.right))
    if not high <= max_loss:
        raise ExportMismatch(
            f"the export in int8 was rejected, and nothing was written: it costs {loss:.2f} points "
            f"of accuracy (95% CI {low:.2f} to {high:.2f}, n = {proof.images:,}), and the "
            f"upper end must be at most {max_loss:g}. More held-out images (--on DATA) narrow the "
            f"interval; --max-loss {math.ceil(10 * high) / 10:g} would accept it"
        )


def compare_speed(first: Classify, second: Classify, images: Pixels) -> Speed:
    """Time both on images uint8 (B, H, W, C), round after round, in alternating order."""
    for classify in (first, second):
        classify(images)  # the first call allocates
    rounds = PairedRounds()
    started = time.perf_counter()
    while len(rounds.ratios) < _MIN_ROUNDS or (
        time.perf_counter() - started < _MIN_SECONDS and len(rounds.ratios) < _MAX_ROUNDS
    ):
        rounds.measure(lambda: _rate(first, images), lambda: _rate(second, images))
    ratios = sorted(rounds.ratios)
    quarter = len(ratios) // 4
    return Speed(
        batch=len(images),
        first_per_second=median(rounds.baseline),
        second_per_second=median(rounds.changed),
        times=rounds.median_ratio,
        low=ratios[quarter],
        high=ratios[-1 - quarter],
    )


def _loss(counts: PairedCounts) -> tuple[float, float, float]:
    """Return the accuracy lost by the export, and the ends of its paired 95% interval."""
    return (counts.difference, *difference_interval(counts))


def _rate(classify: Classify, images: Pixels) -> float:
    """Return the images per second."""
    started = time.perf_counter()
    classify(images)
    return len(images) / (time.perf_counter() - started)
