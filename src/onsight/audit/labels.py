"""Labels that look wrong: judged by a head on features, each image by one that has not seen it.

n images, K classes, D features.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.audit.finding import Finding
from onsight.audit.subject import Subject
from onsight.data.folds import USUAL_FOLDS, assign_folds
from onsight.evaluation.pairs import confused_pairs
from onsight.evaluation.results import ConfusedPair
from onsight.features.heads.choose import COARSE, HeadSettings, choose_head
from onsight.features.heads.labelled import LabelledFeatures

_PENALTY_IMAGES = 2000  # enough to choose a penalty with
INSTALL = 'pip install "onsight[check]"'


class Judged(NamedTuple):
    """What models that had not seen an image made of it. probabilities: float32 (n, K)."""

    probabilities: NDArray[np.float32]
    labels: NDArray[np.int32]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The likeliest class of each image: int64 (n,)."""
        return np.asarray(self.probabilities.argmax(1))


def judge_labels(features: Tensor, labels: NDArray[np.int32], groups: NDArray[np.uint8]) -> Judged:
    """Fit heads on the features of all folds but one, and judge that one, for every fold.

    groups: uint8 (n, 16), equal for copies of an image, which share a fold.
    """
    classes = int(labels.max()) + 1
    data = LabelledFeatures(features[None], torch.from_numpy(labels).long())
    folds = torch.from_numpy(assign_folds(groups, labels, USUAL_FOLDS))
    settings = _settings(data, classes)
    logits = torch.zeros(len(labels), classes)
    for fold in range(1, USUAL_FOLDS + 1):
        judged = folds == fold
        if judged.any() and not judged.all():
            head = settings.fit(data.take((~judged).nonzero()[:, 0]), classes)
            logits[judged] = head(features[judged])
    return Judged(logits.softmax(1).numpy(), labels)


def _settings(data: LabelledFeatures, classes: int) -> HeadSettings:
    some = data.take(torch.arange(min(len(data), _PENALTY_IMAGES)))
    chosen = choose_head(some, data.take(torch.arange(0)), classes, penalties=COARSE).settings
    return chosen if isinstance(chosen, HeadSettings) else HeadSettings(COARSE[1])


def suspects(judged: Judged) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The images whose labels look wrong, the surest first, and how sure: 0 to 1.

    How many is found by confident learning (Northcutt and others, 2021), as cleanlab has it, which
    must be installed; which, by the probability of the label itself.
    """
    from cleanlab.filter import find_label_issues

    wrong = find_label_issues(judged.labels, judged.probabilities, filter_by="both", n_jobs=1)
    own = judged.probabilities[np.arange(len(judged.labels)), judged.labels].astype(np.float64)
    rows = np.flatnonzero(judged.predicted != judged.labels)
    rows = rows[np.argsort(own[rows], kind="stable")][: int(wrong.sum())]
    return rows, 1 - own[rows]


def label_findings(subject: Subject, judged: Judged) -> Iterator[Finding]:
    """A finding for each image whose label looks wrong."""
    rows, scores = suspects(judged)
    predicted = judged.predicted
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        name = subject.classes[predicted[row]]
        probability = float(judged.probabilities[row, predicted[row]])
        own = float(judged.probabilities[row, judged.labels[row]])
        what = f"looks like '{name}' ({probability:.0%}, its own label {own:.1%})"
        yield Finding("label", what, "used with its label", (subject.place(row),), score)


def alike_classes(subject: Subject, judged: Judged) -> list[ConfusedPair]:
    """Pairs of classes that the same heads cannot tell apart, or hardly."""
    classes = len(subject.classes)
    cells = judged.labels.astype(np.int64) * classes + judged.predicted
    confusion = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
    return confused_pairs(confusion.astype(np.int64), subject.classes)
