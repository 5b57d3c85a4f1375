"""Wrong labels and problematic classes, found by cross-validation on features of the images.

C channels, D features, K classes, n images.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.audit.dataset import CheckedDataset
from onsight.audit.finding import AuditFinding, AuditItem
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.data.pack import Pack
from onsight.data.split import USUAL_FOLDS, assign_folds, group_identical
from onsight.evaluation.metrics import find_confused_pairs
from onsight.evaluation.results import ConfusedPair
from onsight.features.choose_head import COARSE, choose_head
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.heads import HeadSettings, LabelledFeatures
from onsight.models.catalog import expected_input, make_model
from onsight.models.classifier import Classifier
from onsight.models.timm_nets import OFFLINE_MODEL
from onsight.report.console import Reporter
from onsight.report.sentences import pair_sentence
from onsight.text import plural

_MIN_SIDE = 96  # pixels: smaller images are enlarged for the backbone
_PENALTY_IMAGES = 2000  # sample size for choosing a penalty
_RARE = 20  # distinct images; fewer are hard to learn from, and too few to evaluate on
_IMBALANCE = 10  # ratio of the largest class to a rare one


class OutOfFoldPredictions(NamedTuple):
    """Predictions for every image by a model that was trained without it."""

    probabilities: NDArray[np.float32]  # (n, K)
    labels: NDArray[np.int32]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The most probable class of each image: int64 (n,)."""
        return np.asarray(self.probabilities.argmax(1))


def embed_images(
    pack: Pack, cache_folder: Path | None, device: torch.device, reporter: Reporter
) -> Tensor:
    """Return features (n, D) of a pretrained backbone, cached. Raises DiskError."""
    classifier = _load_backbone(pack, device)
    ids = torch.arange(len(pack))
    loader = feature_loader(Loader(Images.of(pack), ids, 1, device))

    def compute() -> Tensor:
        with reporter.bar("features", len(pack)) as bar:
            return compute_features(classifier, loader.in_order(), progress=bar.advance)

    key = features_key(classifier, pack.format, torch.from_numpy(pack.digests))
    return FeatureStore(cache_folder).get(key, compute, len(pack))


def predict_out_of_fold(
    features: Tensor, labels: NDArray[np.int32], groups: NDArray[np.uint8]
) -> OutOfFoldPredictions:
    """Cross-validate a linear classifier on features (n, D).

    groups: digests, uint8 (n, 16); images with equal digests are put into the same fold.
    """
    classes = int(labels.max()) + 1
    data = LabelledFeatures(features[None], torch.from_numpy(labels).long())
    folds = torch.from_numpy(assign_folds(groups, labels, USUAL_FOLDS))
    settings = _choose_settings(data, classes)
    logits = torch.zeros(len(labels), classes)
    for fold in range(1, USUAL_FOLDS + 1):
        is_held_out = folds == fold
        if is_held_out.any() and not is_held_out.all():
            head = settings.fit(data.take((~is_held_out).nonzero()[:, 0]), classes)
            logits[is_held_out] = head(features[is_held_out])
    return OutOfFoldPredictions(logits.softmax(1).numpy(), labels)


def find_label_errors(
    predictions: OutOfFoldPredictions,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the images whose labels look wrong, most certain first, and scores from 0 to 1.

    Their number is estimated by confident learning (Northcutt et al., 2021, implemented by
    cleanlab, which must be installed); they are ranked by the probability of their label.
    """
    from cleanlab.filter import find_label_issues

    labels, probabilities = predictions.labels, predictions.probabilities
    is_wrong = find_label_issues(labels, probabilities, filter_by="both", n_jobs=1)
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    rows = np.flatnonzero(predictions.predicted != labels)
    rows = rows[np.argsort(own[rows], kind="stable")][: int(is_wrong.sum())]
    return rows, 1 - own[rows]


def find_wrong_labels(
    dataset: CheckedDataset, predictions: OutOfFoldPredictions
) -> Iterator[AuditFinding]:
    """Yield a finding for each image whose label is probably wrong."""
    rows, scores = find_label_errors(predictions)
    predicted = predictions.predicted
    for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
        name = dataset.classes[predicted[row]]
        probability = float(predictions.probabilities[row, predicted[row]])
        own = float(predictions.probabilities[row, predictions.labels[row]])
        description = f"looks like '{name}' ({probability:.0%}, labelled class {own:.1%})"
        items = (dataset.item(row),)
        yield AuditFinding("label", description, "used with its label", items, score)


def find_class_problems(
    dataset: CheckedDataset, predictions: OutOfFoldPredictions | None
) -> Iterator[AuditFinding]:
    """Yield findings about rare classes, and with predictions, about classes that are confused."""
    yield from _find_rare_classes(dataset)
    for pair in _find_confused_classes(dataset, predictions) if predictions else ():
        first, second = pair["classes"]
        yield AuditFinding(
            "classes",
            pair_sentence(pair),
            "both are learned; merge them, or add images that show the difference",
            (AuditItem(first, first), AuditItem(second, second)),
            1 - pair["accuracy"],
        )


def _find_rare_classes(dataset: CheckedDataset) -> Iterator[AuditFinding]:
    group, _ = group_identical(dataset.pack.digests)
    classes = len(dataset.classes)
    images = np.unique(group * classes + dataset.pack.index.labels)  # copies count once in a class
    counts = np.bincount(images % classes, minlength=classes)
    largest = int(counts.max())
    for name, count in zip(dataset.classes, counts.tolist(), strict=True):
        if count >= _RARE and _IMBALANCE * count >= largest:
            continue
        images_text = plural(count, "different image")
        ratio = ""
        if 2 * count < largest:
            ratio = f", {largest / count:.0f} times fewer than the largest class"
        yield AuditFinding(
            "classes",
            f"rare: {images_text}{ratio}",
            "weighted more (--class-weights); more images would help most here",
            (AuditItem(name, name),),
            1 - count / max(_RARE, largest),
        )


def _find_confused_classes(
    dataset: CheckedDataset, predictions: OutOfFoldPredictions
) -> Sequence[ConfusedPair]:
    classes = len(dataset.classes)
    cells = predictions.labels.astype(np.int64) * classes + predictions.predicted
    confusion = np.bincount(cells, minlength=classes**2).reshape(classes, classes)
    return find_confused_pairs(confusion.astype(np.int64), dataset.classes)


def _choose_settings(data: LabelledFeatures, classes: int) -> HeadSettings:
    """Choose the penalty of the linear classifier on some of the images."""
    sample = data.take(torch.arange(min(len(data), _PENALTY_IMAGES)))
    nothing = data.take(torch.arange(0))
    chosen = choose_head(sample, nothing, classes, penalties=COARSE).settings
    return chosen if isinstance(chosen, HeadSettings) else HeadSettings(COARSE[1])


def _load_backbone(pack: Pack, device: torch.device) -> Classifier:
    height, width, channels = pack.format.height, pack.format.width, pack.format.channels
    scale = max(1.0, _MIN_SIDE / min(height, width))
    size = round(scale * height), round(scale * width)
    net = make_model(OFFLINE_MODEL, (channels, *size), 2, pretrained=True)
    expected = expected_input(OFFLINE_MODEL)
    assert expected is not None
    normalization = Normalization(*expected.scaling(channels), size if scale > 1 else None)
    return Classifier(net.to(device), normalization, "fp32", device)
