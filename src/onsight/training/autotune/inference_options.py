"""How a frozen backbone computes features: the fastest precision whose features agree, threads."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.features.feature_pass import compute_features
from onsight.models.classifier import Classifier
from onsight.step.timing import measure_seconds
from onsight.text import joined, plural
from onsight.training.images.training_data import TrainingData
from onsight.training.plan import ComputePlan

_WITHOUT_BF16 = ("AVX2", "NO AVX")  # x86-64; emulated, it was 20 times as slow as fp32
_TRIED = 4  # images: where bf16 is emulated, more would take minutes
_TIMES = 3
_WORTH = 1.2  # times as fast: less does not pay for rounding
_AGREE = 0.99  # least cosine between an image's features in both precisions


def choose_inference(config: Config, data: TrainingData, plan: ComputePlan) -> ComputePlan:
    """A plan with the precision and threads in which a frozen backbone is fastest here.

    Measured on four images: beside other work one thread is often faster than two.
    """
    if config.plan == "default" or data.device.type != "cpu":
        return plan
    net = data.new_network(config)
    batch = next(iter(data.images.batches([data.dataset.ids(TRAIN)[:_TRIED]], None)))
    fp32, bf16 = (
        Classifier(net, data.normalization, precision, data.device)
        for precision in ("fp32", "bf16")
    )
    most = plan.threads.value
    counts = [most] if config.threads or most == 1 else [most, 1]
    seconds = {count: _seconds(fp32, batch.images, count) for count in counts}
    threads = min(counts, key=lambda count: seconds[count])
    if len(counts) > 1:
        rates = [f"{plural(n, 'thread')} {_TRIED / seconds[n]:,.0f} images/s" for n in counts]
        plan = replace(plan, threads=Choice(threads, joined(rates), _TRIED / seconds[threads]))
    if config.precision != "auto":
        return plan
    if torch.backends.cpu.get_cpu_capability() in _WITHOUT_BF16:
        return replace(plan, precision=Choice("fp32", "this processor would only emulate bf16"))
    exact, rounded = (compute_features(classifier, [batch]) for classifier in (fp32, bf16))
    cosine = float(F.cosine_similarity(exact, rounded).min())
    ratio = seconds[threads] / _seconds(bf16, batch.images, threads)
    figures = f"bf16 is {ratio:.2f} times as fast, and its features agree to {cosine:.4f}"
    chosen = "bf16" if ratio > _WORTH and cosine > _AGREE else "fp32"
    return replace(
        plan, precision=Choice(chosen, f"{figures} (least cosine of {_TRIED} images)", ratio)
    )


def _seconds(classifier: Classifier, images: Tensor, threads: int) -> float:
    """Seconds of a forward pass; the first is not counted, unless all are slow."""
    times = [measure_seconds(lambda: classifier(images), threads, classifier.device)]
    while len(times) <= _TIMES and sum(times) < 1.0:
        times.append(measure_seconds(lambda: classifier(images), threads, classifier.device))
    return min(times)
