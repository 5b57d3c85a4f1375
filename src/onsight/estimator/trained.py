"""A trained model kept as the bytes of its file, so that it can be copied and stored."""

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from onsight.inference.predictor import Predictor, load
from onsight.models.file import FILE_NAME


class Trained:
    """The bytes of a model file, loaded when first asked.

    module: the user's own network or package.module:callable, if the model is one.
    """

    def __init__(self, content: bytes, module: nn.Module | str | None, device: str) -> None:
        self._content = content
        self._module = module
        self._device = device
        self._predictor: Predictor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_predictor": None}

    def predictor(self) -> Predictor:
        """The model, ready to predict. Raises ModelError, DeviceError."""
        if self._predictor is None:
            with tempfile.TemporaryDirectory(prefix="onsight-") as folder:
                path = Path(folder) / FILE_NAME
                path.write_bytes(self._content)
                self._predictor = load(path, device=self._device, module=self._module)
        return self._predictor
