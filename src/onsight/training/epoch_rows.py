"""What is known at the end of an epoch: a row of metrics.jsonl, and a line to read."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from onsight.errors import NonFiniteLoss
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import EpochRow
from onsight.text import fixed_percent
from onsight.training.run_folder.progress import Progress


def epoch_row(
    now: Progress, judged: Mapping[str, PredictionTable], learning_rate: float, checkpoints: Path
) -> EpochRow:
    """The row of the epoch that has just ended.

    judged: the results of each split that was looked at. Raises NonFiniteLoss, which tells of the
    folder of checkpoints, for a validation loss that is not finite.
    """
    facts: dict[str, Any] = {
        "epoch": now.epoch + 1,
        "train_loss": now.mean_loss,
        "learning_rate": learning_rate,
        "seconds": now.epoch_seconds,
        "images_per_second": now.epoch_images / now.epoch_seconds,
        "data_wait_share": now.epoch_wait_seconds / now.epoch_seconds,
        "lines": now.epoch_lines,
    }
    for name, per_image in judged.items():
        facts |= split_facts(name, per_image)
    row = cast(EpochRow, facts)
    if row["validation_loss"] is not None and not math.isfinite(row["validation_loss"]):
        raise NonFiniteLoss(
            f"the validation loss is {row['validation_loss']} after epoch {now.epoch + 1}; "
            f"try a lower --learning-rate. The weights from before that epoch, if any, are in "
            f"{checkpoints}"
        )
    return row


def split_facts(name: str, per_image: PredictionTable) -> dict[str, Any]:
    """The loss and the accuracy of a split, with its interval and n, as fields of a row."""
    right = int((per_image.labels == per_image.predicted).sum())
    return {
        f"{name}_loss": float(per_image.losses.mean()) if len(per_image) else None,
        **proportion_with_interval(f"{name}_accuracy", right, len(per_image)),
        f"{name}_images": len(per_image),
    }


def epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    """The row in words. epochs: how many there will be; 0: as many as fit into a budget."""
    of = f"/{epochs}" if epochs else ""
    line = f"epoch {row['epoch']}{of}: loss {row['train_loss']:.4f}"
    for name in ("validation", "test"):
        if row.get(f"{name}_accuracy") is not None:
            low, high = row[f"{name}_accuracy_low"], row[f"{name}_accuracy_high"]
            line += (
                f", {name} {fixed_percent(row[f'{name}_accuracy'])} "
                f"({100 * low:.1f} to {100 * high:.1f}, n = {row[f'{name}_images']:,})"
            )
    return line + (
        f", {row['images_per_second']:,.0f} images/s, "
        f"{100 * row['data_wait_share']:.1f}% of the time waiting for data"
    )
