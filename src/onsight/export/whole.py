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

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import onsight
from onsight.data.normalization import enlarge
from onsight.data.shrink import apply_weights, filter_weights
from onsight.errors import ModelError
from onsight.models.head import capturing_features
from onsight.models.out_of_distribution import score
from onsight.models.preprocessing import Preprocessing
from onsight.text import shorten

SHRINK_WEIGHTS = ("shrink_rows", "shrink_columns")  # names in the graph
_EXAMPLES = 2  # images in the example batch; torch.export specialises a batch of 1
_REASON_LENGTH = 200  # characters of an exporter's message
_OPERATOR = re.compile(r"\b((?:aten|prims|torchvision)[.:]+\w+)")


class WholeClassifier(nn.Module):
    """Maps images uint8 (B, H, W, C), as packed, to probabilities float32 (B, K).

    With a bank of training features it also returns out-of-distribution scores (B,). The
    operations are the same as in Normalization and Classifier, in fp32.
    """

    mean: Tensor
    std: Tensor
    shrink_rows: Tensor | None
    shrink_columns: Tensor | None
    bank: Tensor

    def __init__(
        self, net: nn.Module, prepared: Preprocessing, temperature: float, bank: Tensor | None
    ) -> None:
        super().__init__()
        self.net = net
        image_format = prepared.format
        self.size = image_format.model_size
        self.temperature = temperature
        self.register_buffer("mean", torch.tensor(prepared.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(prepared.std).view(1, -1, 1, 1))
        packed = image_format.height, image_format.width
        shrunk = min(packed[0], self.size[0]), min(packed[1], self.size[1])
        for name, weights in zip(SHRINK_WEIGHTS, filter_weights(packed, shrunk), strict=True):
            self.register_buffer(name, weights)
        self.has_bank = bank is not None
        if bank is not None:
            self.register_buffer("bank", bank.float())

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return probabilities (B, K) and, with a bank, scores (B,) of images (B, H, W, C)."""
        inputs = self._inputs(images)
        if not self.has_bank:
            return self._probabilities(self.net(inputs))
        with capturing_features(self.net) as features:
            probabilities = self._probabilities(self.net(inputs))
        return probabilities, score(features[0], self.bank)

    def _inputs(self, images: Tensor) -> Tensor:
        shrunk = apply_weights(images, self.shrink_rows, self.shrink_columns)
        planes = enlarge(shrunk, self.size).permute(0, 3, 1, 2)
        return (planes / 255 - self.mean) / self.std

    def _probabilities(self, logits: Tensor) -> Tensor:
        return (logits.float() / self.temperature).softmax(dim=1)


def as_program(
    net: nn.Module,
    prepared: Preprocessing,
    temperature: float,
    bank: Tensor | None = None,
) -> ExportedProgram:
    """Return the graph of the whole classifier, for any number of images.

    bank: as in OutOfDistributionDetector, for a second output of scores. Raises ModelError for a
    network that cannot be exported.
    """
    whole = WholeClassifier(net, prepared, temperature, bank).eval().requires_grad_(False)
    size = prepared.format
    images = torch.zeros(_EXAMPLES, size.height, size.width, size.channels).byte()
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
