"""`onsight.check`: find what is wrong with a dataset before training."""

import time
from pathlib import Path

from onsight.audit.audit import Audit
from onsight.audit.dataset import CheckedDataset, open_dataset
from onsight.audit.finding import KINDS, AuditFinding
from onsight.audit.images import find_copied_images, find_poor_images, find_unusable_files
from onsight.audit.labels import (
    OutOfFoldPredictions,
    embed_images,
    find_class_problems,
    find_wrong_labels,
    predict_out_of_fold,
)
from onsight.config import make_config
from onsight.data.cache import find_cache_folder
from onsight.data.duplicates.comparison import NearDuplicate
from onsight.data.duplicates.near import connected_groups, find_near_duplicates
from onsight.data.sources.find import ReadOptions, find_source, name_data, resolve_data
from onsight.data.sources.memory import InMemory
from onsight.data.split import USUAL_FOLDS
from onsight.errors import DataError
from onsight.evaluation.statistics import wilson
from onsight.files import user_path
from onsight.hardware.devices import choose_device
from onsight.installation import explain_missing, is_installed
from onsight.models.timm_nets import OFFLINE_MODEL
from onsight.report.console import Reporter
from onsight.text import percent
from onsight.untrusted import read_csv

_MIN_IMAGES = 20  # with fewer images, labels are not checked


def check(
    data: str | Path | InMemory,
    *,
    quick: bool = False,
    ignore: str | Path | None = None,
    image_size: str = "auto",
    device: str = "auto",
    data_format: str = "auto",
    label: str = "",
    label_from: str = "",
    crop_boxes: bool = False,
    cache_folder: str = "",
    reporter: Reporter | None = None,
) -> Audit:
    """Find unusable files, copies, leaks, wrong labels and poor images. Nothing is modified.

    Args:
        data: Labelled images, in any form that `train` accepts.
        quick: Skip the check of labels, which takes most of the time.
        ignore: A CSV file with the ids of findings to omit, such as rows of check.csv.
        image_size: The size in pixels to decode images at. auto: the original size if small,
            otherwise 128.
        device: auto, cpu, cuda, cuda:1, xpu or mps.
        data_format: The format of the data; auto detects it.
        label: The column with the labels, if a manifest has several.
        label_from: A regular expression that extracts the label from each image's path.
        crop_boxes: Treat each annotated box as a separate image.
        cache_folder: Where to cache decoded images; "none" disables the cache.
        reporter: Where progress is shown. Default: stderr.

    Raises:
        DataError: There are no usable images.
        ConfigError: An argument is invalid.
        DiskError: A file cannot be written.
    """
    started = time.monotonic()
    reporter = reporter or Reporter()
    ignored_ids = read_ignored_ids(user_path(ignore)) if ignore else set()
    resolved = resolve_data(data)
    cache = find_cache_folder(cache_folder)
    source = find_source(resolved, ReadOptions(data_format, label, label_from, crop_boxes), cache)
    reporter.say(f"data: {source.description}")
    dataset = open_dataset(source, make_config({"image_size": image_size}), cache, reporter)
    with reporter.bar("compare", len(dataset.pack)) as bar:
        near_duplicates = find_near_duplicates(dataset.pack, cache, bar.advance)
    note = "labels were not checked" if quick else _explain_skipped_labels(dataset)
    predictions = None
    if not note:
        features = embed_images(dataset.pack, cache, choose_device(device).value, reporter)
        pairs = ((pair.first, pair.second) for pair in near_duplicates)
        groups = connected_groups(len(dataset.pack), pairs)
        digests = dataset.pack.digests[groups]  # equal for near-duplicates, too
        predictions = predict_out_of_fold(features, dataset.pack.index.labels, digests)
        note = (
            f"labels were checked by {USUAL_FOLDS}-fold cross-validation on "
            f"features of {OFFLINE_MODEL}: {_describe_agreement(predictions)}"
        )
    findings = _collect(dataset, near_duplicates, predictions)
    shown = [finding for finding in findings if finding.id not in ignored_ids]
    return Audit(
        data=name_data(resolved),
        files=len(source.index) + len(source.problems),
        images=len(dataset.pack),
        classes=dataset.class_counts(),
        findings=tuple(shown),
        ignored=len(findings) - len(shown),
        notes=(note, *dataset.source.notes),
        seconds=round(time.monotonic() - started, 1),
        dataset=dataset,
    )


def read_ignored_ids(path: Path) -> set[str]:
    """Read the ids in a CSV file, such as rows copied from check.csv. Raises DataError."""
    rows = read_csv(path, "surrogateescape")
    _, header = next(rows, (0, []))
    if "id" not in header:
        raise DataError(f"{path} has no column id: copy rows of check.csv into it")
    column = header.index("id")
    return {cells[column] for _, cells in rows if len(cells) > column} - {""}


def _collect(
    dataset: CheckedDataset,
    near_duplicates: list[NearDuplicate],
    predictions: OutOfFoldPredictions | None,
) -> list[AuditFinding]:
    """Return all findings, most serious first."""
    findings = [
        *find_unusable_files(dataset),
        *find_copied_images(dataset, near_duplicates),
        *find_poor_images(dataset),
        *(find_wrong_labels(dataset, predictions) if predictions else ()),
        *find_class_problems(dataset, predictions),
    ]
    order = list(KINDS)
    return sorted(
        findings, key=lambda finding: (order.index(finding.kind), -finding.score, finding.id)
    )


def _explain_skipped_labels(dataset: CheckedDataset) -> str:
    """Return why labels cannot be checked, or an empty text."""
    if len(dataset.classes) < 2:
        return "labels were not checked: there is only one class"
    if len(dataset.pack) < _MIN_IMAGES:
        return f"labels were not checked: fewer than {_MIN_IMAGES} images"
    if not is_installed("cleanlab"):
        return f"labels were not checked: {explain_missing('cleanlab', 'check', 'that')}"
    return ""


def _describe_agreement(predictions: OutOfFoldPredictions) -> str:
    count = len(predictions.labels)
    correct = int((predictions.predicted == predictions.labels).sum())
    low, high = wilson(correct, count)
    return (
        f"{percent(correct / count)} of the labels agree with the predictions "
        f"(95% CI {100 * low:.1f} to {100 * high:.1f}, n = {count:,})"
    )
