"""Classes that are rare, hardly to be told apart, or named almost alike."""

from collections.abc import Iterator, Sequence

import numpy as np

from onsight.audit.finding import Finding, Place
from onsight.audit.subject import Subject
from onsight.data.split import different
from onsight.evaluation.results import ConfusedPair
from onsight.report.sentences import pair_sentence
from onsight.words import plural

_FEW = 20  # different images: fewer are hard to learn from and too few to judge by
_UNBALANCED = 10  # times as many images in the largest class


def class_findings(subject: Subject, alike: Sequence[ConfusedPair]) -> Iterator[Finding]:
    """Findings about classes, from their images and from how well heads told them apart."""
    yield from _rare(subject)
    for pair in alike:
        one, other = pair["classes"]
        yield Finding(
            "classes",
            pair_sentence(pair),
            "both are learned; merge them, or add images that show the difference",
            (Place(one, one), Place(other, other)),
            1 - pair["accuracy"],
        )


def _rare(subject: Subject) -> Iterator[Finding]:
    group, _ = different(subject.pack.digests)
    classes = len(subject.classes)
    images = np.unique(group * classes + subject.pack.index.labels)  # each once in a class
    counts = np.bincount(images % classes, minlength=classes)
    most = int(counts.max())
    for name, count in zip(subject.classes, counts.tolist(), strict=True):
        if count >= _FEW and _UNBALANCED * count >= most:
            continue
        shown = plural(count, "different image")
        against = f", {most / count:.0f} times fewer than the largest" if 2 * count < most else ""
        yield Finding(
            "classes",
            f"rare: {shown}{against}",
            "weighted more (--class-weights); more images would help most here",
            (Place(name, name),),
            1 - count / max(_FEW, most),
        )
