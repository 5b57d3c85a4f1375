"""What a format of exported files is, and the formats that there are."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.export import ExportedProgram

from onsight.data.pillow_pixels import Pixels
from onsight.errors import ConfigError, did_you_mean

Classify = Callable[[Pixels], NDArray[np.float32]]
"""From images uint8 (B, H, W, C) to probabilities float32 (B, K)."""


class Format(NamedTuple):
    """How the graph of a classifier is written, and run again to be judged.

    suffix: of the file; packages: that writing and running need, and install, which gets them;
    write: of the graph and the facts (`facts.facts_of`) to a path; run: what a file of this format
    computes, on all usable cores; detects_out_of_distribution: whether the file also gives the
    out-of-distribution scores.
    """

    suffix: str
    packages: tuple[str, ...]
    install: str
    write: Callable[[ExportedProgram, dict[str, Any], Path], None]
    run: Callable[[Path], Classify]
    detects_out_of_distribution: bool = False


_HOMES = {
    "onnx": "onsight.export.to_onnx",
    "torch-export": "onsight.export.to_torch_export",
}
_INSTEAD = {  # of formats that are asked for
    "coreml": "coremltools 9.0 takes no images as bytes, and what it writes runs on macOS only. "
    "Export to onnx, and run it there with onnxruntime's CoreML provider",
    "executorch": "export to onnx, which ONNX Runtime runs on phones",
    "openvino": "export to onnx, which OpenVINO reads",
    "tflite": "litert-torch 0.10 takes only versions of torch below 2.15. Export to onnx, which "
    "ONNX Runtime runs on phones",
}
NAMES = tuple(_HOMES)


def find_format(name: str) -> Format:
    """The format of this name. Raises ConfigError if it is unknown or its packages are missing."""
    if name in _INSTEAD:
        raise ConfigError(f"Onsight does not export to {name}: {_INSTEAD[name]}")
    if name not in _HOMES:
        names = (*NAMES, "web")
        raise ConfigError(
            f"there is no format '{name}'; there are {', '.join(names)}.{did_you_mean(name, names)}"
        )
    found: Format = import_module(_HOMES[name]).FORMAT
    missing = [package for package in found.packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"exporting to {name} needs {', '.join(missing)}: pip install {found.install}"
        )
    return found
