"""The formats of exported files; each is a module with a FORMAT."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.export import ExportedProgram

from onsight.data.pixels import Pixels
from onsight.errors import ConfigError, did_you_mean
from onsight.installation import require

Classify = Callable[[Pixels], NDArray[np.float32]]
"""From images uint8 (B, H, W, C) to probabilities float32 (B, K)."""


class Format(NamedTuple):
    """How to write the graph of a classifier, and how to run the file for the proof."""

    suffix: str
    packages: tuple[str, ...]  # packages needed to write and run the file
    extra: str  # extra of Onsight that installs these packages
    write: Callable[[ExportedProgram, dict[str, Any], Path], None]  # graph, model_facts, path
    run: Callable[[Path], Classify]  # on all usable cores
    detects_out_of_distribution: bool = False  # the file also computes the scores


_NAMES = ("onnx", "torch-export")  # each in a module `to_NAME`
_ALTERNATIVES = {  # advice for unsupported formats that users request
    "coreml": "coremltools 9.0 does not accept images as bytes, and its files run on macOS only. "
    "Export to onnx, and run it there with onnxruntime's CoreML provider",
    "executorch": "export to onnx, which ONNX Runtime runs on phones",
    "openvino": "export to onnx, which OpenVINO reads",
    "tflite": "litert-torch 0.10 takes only versions of torch below 2.15. Export to onnx, which "
    "ONNX Runtime runs on phones",
}


def find_format(name: str) -> Format:
    """Return a format. Raises ConfigError if it is unknown or its packages are missing."""
    if name in _ALTERNATIVES:
        raise ConfigError(f"Onsight does not export to {name}: {_ALTERNATIVES[name]}")
    if name not in _NAMES:
        names = (*_NAMES, "web")
        raise ConfigError(
            f"there is no format '{name}'; the formats are {', '.join(names)}."
            f"{did_you_mean(name, names)}"
        )
    form: Format = import_module(f"onsight.export.to_{name.replace('-', '_')}").FORMAT
    for package in form.packages:
        require(package, form.extra, f"exporting to {name}")
    return form
