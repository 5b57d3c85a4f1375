"""An exported ONNX file run by onnxruntime on the CPU; torch is never loaded.

The file holds Onsight's facts as JSON, with a SHA-256 of all its bytes, in its metadata.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onsight.checksum import digest_around
from onsight.data.pillow_pixels import Pixels
from onsight.errors import ConfigError, DeviceError, ModelError
from onsight.inference.runner import Outputs, runner_facts
from onsight.models.preprocessing import Preprocessing
from onsight_explain.cores import usable_cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

METADATA_KEY = "onsight"
INPUT, OUTPUT, SCORES = "images", "probabilities", "scores"
FORMAT = "onsight-onnx"
VERSION = 1

_CHECKSUM = re.compile(rb'"sha256": "([0-9a-f]{64})"')
_AT_ONCE = 16  # images: their activations stay in a CPU's caches
_ERRORS_ONLY = 3  # severity of onnxruntime's log


class OnnxRunner:
    """A Runner whose network is in an ONNX file.

    facts are those in the file; results among them: the headline figures of the run.
    """

    def __init__(self, facts: Mapping[str, Any], session: "InferenceSession") -> None:
        self.metadata = facts
        self.classes: tuple[str, ...] = tuple(facts["classes"])
        self.format = Preprocessing.of(facts["image"]).format
        self.at_once = _AT_ONCE
        self.threshold: float | None = (
            facts["out_of_distribution"]["threshold"] if "out_of_distribution" in facts else None
        )
        self._session = session

    @property
    def facts(self) -> Mapping[str, object]:
        """The network, its device and input, the classes, and how good it is."""
        known = self.metadata
        place = "cpu, by onnxruntime"
        return runner_facts(known["model"], place, self.format, self.classes, known["results"])

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """The outputs for images uint8 (B, H, W, C). Raises ModelError if features are asked."""
        if features:
            raise ModelError(
                "an exported model gives no features: name the run folder or model file that it "
                "was exported from"
            )
        wanted = [OUTPUT] if self.threshold is None else [OUTPUT, SCORES]
        return Outputs(*self._session.run(wanted, {INPUT: images}))

    def spread(self) -> None:
        """Nothing: its threads share every operation."""


def load_onnx(path: Path, device: str = "auto") -> OnnxRunner:
    """An exported file, checked and ready to run on all usable cores.

    Raises ConfigError if onnxruntime is not installed, DeviceError for another device than the
    CPU, ModelError for a file that is damaged, newer, or not exported by Onsight.
    """
    if device not in ("auto", "cpu"):
        raise DeviceError(f"an exported .onnx file runs on the CPU, not on '{device}'")
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"running {path} needs onnxruntime: pip install 'onsight[run]'"
        ) from error
    data = _checked_bytes(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    # Its threads would otherwise keep the cores busy that decode images and answer requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many types, with one meaning here
        raise ModelError(
            f"onnxruntime {onnxruntime.__version__} cannot run {path}: {_first_line(error)}. "
            "Upgrade it: pip install -U onnxruntime"
        ) from error
    try:
        facts = _facts(path, session)
        return OnnxRunner(facts, session)
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(f"{path} is not a complete export of Onsight: {error}") from error


def _checked_bytes(path: Path) -> bytes:
    """The bytes of an exported file, whose checksum is right. Raises ModelError."""
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise ModelError(f"{path} is not a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    marks = list(_CHECKSUM.finditer(data))
    if not marks:
        raise ModelError(
            f"{path} was not exported by Onsight, or it is damaged: it has no checksum of ours. "
            "Export a model with: onsight export MODEL"
        )
    if digest_around(data, marks[-1].start(1)) != marks[-1][1].decode():
        raise ModelError(
            f"{path} is damaged or was changed: its checksum does not match. Copy or export it "
            "again"
        )
    return data


def _facts(path: Path, session: "InferenceSession") -> dict[str, Any]:
    """The facts of an Onsight export, checked against its inputs and outputs."""
    metadata = session.get_modelmeta().custom_metadata_map
    facts: dict[str, Any] = json.loads(metadata[METADATA_KEY])
    if facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, not {FORMAT!r}")
    if facts["version"] != VERSION:
        raise ModelError(
            f"it has version {facts['version']} of the format, but this Onsight reads version "
            f"{VERSION}. Upgrade: pip install -U onsight"
        )
    shape = Preprocessing.of(facts["image"]).format
    wanted = [shape.height, shape.width, shape.channels], [len(facts["classes"])]
    images = {one.name: one.shape[1:] for one in session.get_inputs()}
    outputs = {one.name: one.shape[1:] for one in session.get_outputs()}
    if (images.get(INPUT), outputs.get(OUTPUT)) != wanted or len(images) != 1:
        raise ValueError("its inputs and outputs are not those of its facts")
    if "out_of_distribution" in facts and not (
        SCORES in outputs and math.isfinite(facts["out_of_distribution"]["threshold"])
    ):
        raise ValueError("what tells unlike images is damaged")
    if not 0 < facts["temperature"] < math.inf or not isinstance(facts["results"], dict):
        raise ValueError("its temperature or results are damaged")
    return facts


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
