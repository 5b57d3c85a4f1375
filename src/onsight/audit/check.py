"""`onsight check`: what is wrong with DATA, found before training."""

import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.audit.audit import Audit
from onsight.audit.classes import class_findings
from onsight.audit.copies import copies
from onsight.audit.features import features_of
from onsight.audit.finding import KINDS, Finding
from onsight.audit.labels import INSTALL, Judged, alike_classes, judge_labels, label_findings
from onsight.audit.open_subject import open_subject
from onsight.audit.quality import quality
from onsight.audit.subject import Subject
from onsight.audit.table import read_ignored
from onsight.audit.unusable import unusable
from onsight.config import make_config
from onsight.data.cache import find_cache_folder
from onsight.data.duplicates.comparison import NearDuplicate
from onsight.data.duplicates.groups import groups_of
from onsight.data.duplicates.kept import keep_near_duplicates
from onsight.data.duplicates.near import find_near_duplicates
from onsight.data.sources.find import ReadOptions, find_source, name_data, resolve_data
from onsight.data.sources.memory import InMemory
from onsight.evaluation.intervals import wilson
from onsight.evaluation.results import ConfusedPair
from onsight.files import user_path
from onsight.hardware.devices import choose_device
from onsight.report.console import Reporter
from onsight.words import percent

_FEWEST = 20  # images to judge labels by


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
    """Audit DATA: unusable files, copies, leaks, wrong labels, poor images; nothing is changed.

    quick: without judging labels, which takes most of the time; ignore: a CSV file with the ids of
    findings to leave out. Raises DataError, ConfigError, DiskError.
    """
    begun = time.monotonic()
    reporter = reporter or Reporter()
    ignored = read_ignored(user_path(ignore)) if ignore else set()
    taken = resolve_data(data)
    kept = find_cache_folder(cache_folder)
    source = find_source(taken, ReadOptions(data_format, label, label_from, crop_boxes), kept)
    reporter.say(f"data: {source.description}")
    subject = open_subject(source, make_config({"image_size": image_size}), kept, reporter)
    with reporter.bar("compare", len(subject.pack)) as bar:
        near = find_near_duplicates(subject.pack, bar.advance)
    keep_near_duplicates(kept, subject.source, subject.pack, near)
    note = "labels were not judged" if quick else _why_not(subject)
    judged = None
    if not note:
        features = features_of(subject.pack, kept, choose_device(device).value, reporter)
        judged = judge_labels(features.values, subject.pack.index.labels, _groups(subject, near))
        note = (
            f"labels were judged by heads on {features.made_by}, five of them, each for the "
            f"images it had not seen: {_agreement(judged)}"
        )
    findings = _findings(subject, near, judged)
    left = [one for one in findings if one.id not in ignored]
    return Audit(
        data=name_data(taken),
        files=len(source.index) + len(source.problems),
        images=len(subject.pack),
        classes=subject.counts(),
        findings=tuple(left),
        ignored=len(findings) - len(left),
        notes=(note,),
        seconds=round(time.monotonic() - begun, 1),
        subject=subject,
    )


def _findings(subject: Subject, near: list[NearDuplicate], judged: Judged | None) -> list[Finding]:
    """All findings, gravest first."""
    found = [*unusable(subject), *copies(subject, near), *quality(subject)]
    alike: list[ConfusedPair] = []
    if judged:
        alike = alike_classes(subject, judged)
        found += label_findings(subject, judged)
    found += class_findings(subject, alike)
    order = list(KINDS)
    return sorted(found, key=lambda one: (order.index(one.kind), -one.score, one.id))


def _groups(subject: Subject, near: list[NearDuplicate]) -> NDArray[np.uint8]:
    """Digests (n, 16) that near-duplicates share too."""
    digests = subject.pack.digests
    return digests[groups_of(len(digests), ((one.first, one.second) for one in near))]


def _why_not(subject: Subject) -> str:
    """Why labels cannot be judged, or an empty text."""
    if len(subject.classes) < 2:
        return "labels were not judged: there is only one class"
    if len(subject.pack) < _FEWEST:
        return f"labels were not judged: fewer than {_FEWEST} images"
    if find_spec("cleanlab") is None:
        return f"labels were not judged: that takes {INSTALL}"
    return ""


def _agreement(judged: Judged) -> str:
    right, count = int((judged.predicted == judged.labels).sum()), len(judged.labels)
    low, high = wilson(right, count)
    return (
        f"they agree with {percent(right / count)} "
        f"({100 * low:.1f} to {100 * high:.1f}, n = {count:,}) of the labels"
    )
