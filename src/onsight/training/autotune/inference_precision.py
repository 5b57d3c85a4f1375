"""The precision in which a frozen backbone computes features: the fastest whose features agree."""

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.features.feature_pass import compute_features
from onsight.models.classifier import Classifier
from onsight.training.pictures.training_data import TrainingData
from onsight.training.plan import choose_precision
from onsight.training.step.timing import measure_seconds

_TRIED = 4  # pictures: where bf16 is emulated, more would take minutes
_TIMES = 2
_WORTH = 1.2  # times as fast: less does not pay for rounding
_AGREE = 0.99  # least cosine between a picture's features in both precisions


def choose_inference_precision(config: Config, data: TrainingData) -> Choice[str]:
    """fp32, or bf16 where it is faster and gives the same features; measured on four pictures."""
    if config.precision != "auto" or data.device.type != "cpu" or config.plan == "default":
        return choose_precision(config.precision, data.device)
    net = data.new_network(config)
    batch = next(iter(data.pictures.batches([data.dataset.ids(TRAIN)[:_TRIED]], None)))
    features: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    for precision in ("fp32", "bf16"):
        classifier = Classifier(net, data.normalization, precision, data.device)
        features[precision] = compute_features(classifier, [batch])
        seconds[precision] = min(_seconds(classifier, batch.images) for _ in range(_TIMES))
    cosine = float(F.cosine_similarity(features["fp32"], features["bf16"]).min())
    ratio = seconds["fp32"] / seconds["bf16"]
    figures = f"bf16 is {ratio:.2f} times as fast, and its features agree to {cosine:.4f}"
    chosen = "bf16" if ratio > _WORTH and cosine > _AGREE else "fp32"
    return Choice(chosen, f"{figures} (least cosine of {len(batch.ids)} pictures)", ratio)


def _seconds(classifier: Classifier, images: Tensor) -> float:
    return measure_seconds(lambda: classifier(images), torch.get_num_threads(), classifier.device)
