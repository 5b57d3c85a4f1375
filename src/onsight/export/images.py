"""The images that an export is proven on, and those that its whole numbers are measured on."""

from pathlib import Path

from onsight.data.loader import Images
from onsight.data.pillow_pixels import Pixels
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import DataError
from onsight.inference.held_out import HeldOutImages, open_held_out, training_source
from onsight.inference.predictor import Predictor
from onsight.report.console import Reporter

CALIBRATION_IMAGES = 256


def proof_images(
    predictor: Predictor, on: str | None, data_format: str, kept: Path | None, reporter: Reporter
) -> HeldOutImages:
    """Images that the model has not seen, from `on` or the run's own DATA. Raises DataError."""
    try:
        if on is None:
            source = training_source(predictor, kept)
        else:
            source = find_source(on, ReadOptions(data_format), kept)
        held_out = open_held_out(predictor, source, kept, reporter)
        if len(held_out.ids) == 0:
            raise DataError(
                f"all {len(held_out.seen):,} labelled images of {source.root} trained the model"
            )
    except DataError as error:
        raise DataError(
            f"there are no held-out images to prove the export on: {error}\n"
            "Name labelled images that the model has not seen: --on DATA"
        ) from error
    if on is None and len(held_out.seen) == 0:
        raise DataError(
            f"{source.root} has changed: it has none of the images that trained the model. "
            "Name labelled images to prove the export on: --on DATA"
        )
    return held_out


def calibration_images(
    predictor: Predictor, held_out: HeldOutImages, kept: Path | None, reporter: Reporter
) -> Pixels:
    """Training images (n, H, W, C), of the proof's DATA or else of the run's."""
    if len(held_out.seen) == 0:
        try:
            source = training_source(predictor, kept)
            held_out = open_held_out(predictor, source, kept, reporter)
        except DataError as error:
            raise DataError(f"--int8 needs the training images: {error}") from error
    if len(held_out.seen) == 0:
        raise DataError("--int8 needs the training images, but their DATA has changed")
    some = held_out.seen[:CALIBRATION_IMAGES]  # numbered by digest, so the first are a sample
    return Images.of(held_out.pack).gather(some).images.numpy()
