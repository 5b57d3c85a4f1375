"""Measures batch norm's statistics again at the end of a run, on unaugmented training images."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from onsight.data.loader import BatchSource, Loader
from onsight.evaluation.predictions import BATCH_SIZE
from onsight.models.classifier import Classifier, autocast

SAMPLE = 4096  # images are numbered by digest, so the first are a fair sample


@torch.no_grad()
def recalibrate_norms(classifier: Classifier, images: BatchSource, ids: Tensor) -> None:
    """Set every batch norm's statistics to their mean over batches of the first 4,096 images.

    ids: int64 (n,) training images. Every rank computes the same. Wu and Johnson,
    arXiv:2105.07576, section 3.
    """
    net = classifier.net.eval()  # dropout and the like stay off
    norms = [one for one in net.modules() if isinstance(one, _BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms or len(ids) == 0:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # in torch's terms the plain mean over batches
        norm.train()
    # All batches weigh the same, so a smaller last one is left out.
    sample = ids[: min(SAMPLE, len(ids) // BATCH_SIZE * BATCH_SIZE or len(ids))]
    for batch in Loader(images, sample, BATCH_SIZE, classifier.device).in_order():
        with autocast(classifier.precision, classifier.device):
            net(classifier.normalization.apply(batch.images))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.eval()
