"""Trace the whole classifier as one graph: bytes of images in, probabilities out.

B images, C channels, H height, K classes, W width.
"""

import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import onsight
from onsight.data.fit import ImageFormat
from onsight.data.normalization import enlarge
from onsight.data.shrink import apply_weights, filter_weights
from onsight.errors import ModelError
from onsight.models.blend import blend_logits
from onsight.models.classifier import Classifier, ImageClassifier
from onsight.models.head import capturing_features
from onsight.models.out_of_distribution import score
from onsight.text import shorten

SHRINK_WEIGHTS = ("shrink_rows", "shrink_columns")  # names in the graph
_EXAMPLES = 2  # images in the example batch; torch.export specialises a batch of 1
_REASON_LENGTH = 200  # characters of an exporter's message
_OPERATOR = re.compile(r"\b((?:aten|prims|torchvision)[.:]+\w+)")


class WholeNetwork(nn.Module):
    """Maps images uint8 (B, H, W, C), as packed, to logits float32 (B, K).

    The operations are the same as in Normalization and Classifier, in fp32.

    Args:
        classifier: The network, and the conversion of images to its input.
        packed: The (height, width) of the images.
    """

    mean: Tensor
    std: Tensor
    shrink_rows: Tensor | None
    shrink_columns: Tensor | None

    def __init__(self, classifier: Classifier, packed: tuple[int, int]) -> None:
        super().__init__()
        self.net = classifier.net.to(memory_format=torch.contiguous_format)
        scaling = classifier.normalization
        self.size = scaling.size or packed
        self.register_buffer("mean", torch.tensor(scaling.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(scaling.std).view(1, -1, 1, 1))
        shrunk = min(packed[0], self.size[0]), min(packed[1], self.size[1])
        for name, weights in zip(SHRINK_WEIGHTS, filter_weights(packed, shrunk), strict=True):
            self.register_buffer(name, weights)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, H, W, C)."""
        shrunk = apply_weights(images, self.shrink_rows, self.shrink_columns)
        planes = enlarge(shrunk, self.size).permute(0, 3, 1, 2)
        logits: Tensor = self.net((planes / 255 - self.mean) / self.std)
        return logits.float()


class WholeClassifier(nn.Module):
    """Maps images uint8 (B, H, W, C), as packed, to probabilities float32 (B, K).

    With scores, it also returns out-of-distribution scores (B,).

    Args:
        classifier: One network or a blend.
        packed: The (height, width) of the images.
        with_scores: Whether to compute scores; the classifier has a detector then.
    """

    bank: Tensor

    def __init__(
        self, classifier: ImageClassifier, packed: tuple[int, int], with_scores: bool
    ) -> None:
        super().__init__()
        members = list(classifier.members.values())
        self.members = nn.ModuleList(WholeNetwork(member, packed) for member in members)
        self.weights = list(classifier.weights.values())
        self.temperatures = [member.temperature for member in members]
        self.feature_member = members.index(classifier.feature_member)
        self.temperature = classifier.temperature
        self.with_scores = with_scores
        if with_scores:
            assert classifier.out_of_distribution
            self.register_buffer("bank", classifier.out_of_distribution.bank.float())

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return probabilities (B, K) and, if wanted, scores (B,) of images (B, H, W, C)."""
        if not self.with_scores:
            return self._probabilities(images)
        member: Any = self.members[self.feature_member]
        with capturing_features(member.net) as features:
            probabilities = self._probabilities(images)
        return probabilities, score(features[0], self.bank)

    def _probabilities(self, images: Tensor) -> Tensor:
        logits = [member(images) for member in self.members]
        if len(logits) == 1:
            blended: Tensor = logits[0]
        else:
            pairs = zip(logits, self.temperatures, strict=True)
            calibrated = [values / temperature for values, temperature in pairs]
            blended = blend_logits(calibrated, self.weights)
        return (blended / self.temperature).softmax(dim=1)


def as_program(
    classifier: ImageClassifier, image_format: ImageFormat, with_scores: bool = False
) -> ExportedProgram:
    """Return the graph of the whole classifier, for any number of images.

    with_scores: whether out-of-distribution scores are a second output. Raises ModelError if a
    network cannot be exported.
    """
    height, width = image_format.height, image_format.width
    whole = WholeClassifier(classifier, (height, width), with_scores).eval().requires_grad_(False)
    images = torch.zeros(_EXAMPLES, height, width, image_format.channels).byte()
    with exporting("torch.export"):
        return torch.export.export(whole, (images,), dynamic_shapes={"images": {0: Dim("batch")}})


@contextmanager
def exporting(tool: str) -> Iterator[None]:
    """Convert an exporter's exceptions to ModelError, and discard its output."""
    previous_level, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sink), redirect_stderr(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except OSError:  # such as a full disk
        raise
    except Exception as error:
        raise ModelError(_explain(tool, error)) from error
    finally:
        logging.disable(previous_level)


def _explain(tool: str, error: BaseException) -> str:
    """Return which operator, or which line of the network, cannot be exported, and why."""
    line = _find_line(error)
    while error.__cause__ is not None:  # the first error of the chain has the reason
        error = error.__cause__
        line = _find_line(error) or line
    operator = _OPERATOR.search(str(error))
    part = f"the operator {operator[1]}" if operator else line or "how it treats its input"
    reason = shorten(str(error), _REASON_LENGTH)
    return f"{tool} cannot export this network, because of {part}: {type(error).__name__}: {reason}"


def _find_line(error: BaseException) -> str | None:
    """Return the innermost line outside torch and Onsight in an error's traceback."""
    libraries = tuple(f"{package.__path__[0]}{os.sep}" for package in (torch, onsight))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if os.path.isabs(frame.filename) and not frame.filename.startswith(libraries):
            return f"line {frame.lineno} of {frame.filename} ({frame.line})"
    return None
