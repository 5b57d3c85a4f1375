"""An exported ONNX file run by onnxruntime on the CPU, without torch.

Its metadata has the facts about the model as JSON, with a SHA-256 of all other bytes of the file.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onsight.data.pixels import Pixels
from onsight.errors import DeviceError, ModelError
from onsight.files import digest_around
from onsight.inference.runner import Outputs, model_facts
from onsight.installation import require
from onsight.models.class_names import read_class_names
from onsight.models.preprocessing import Preprocessing
from onsight.models.unsuitable import exported_error
from onsight.untrusted import parse_json
from onsight_explain.threads import usable_cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

METADATA_KEY = "onsight"
INPUT, OUTPUT, SCORES = "images", "probabilities", "scores"
FORMAT = "onsight-onnx"
VERSION = 1

_CHECKSUM = re.compile(rb'"sha256": "([0-9a-f]{64})"')


class OnnxRunner:
    """A Runner whose network is in an ONNX file."""

    batch_size = 16  # small enough for the activations to stay in a CPU's caches

    def __init__(self, metadata: Mapping[str, Any], session: "InferenceSession") -> None:
        self.metadata = metadata  # the facts in the file, the main results of its run included
        self.classes = read_class_names(metadata["classes"])
        self.format = Preprocessing.of(metadata["image"]).format
        detector = metadata.get("out_of_distribution")
        self.threshold: float | None = None if detector is None else detector["threshold"]
        self._session = session

    @property
    def facts(self) -> Mapping[str, object]:
        """The network, its device and input, the classes, and its accuracy."""
        model, results = self.metadata["model"], self.metadata["results"]
        return model_facts(self, model, "cpu, by onnxruntime", results)

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """Compute images uint8 (B, H, W, C). Raises ModelError if features are requested."""
        if features:
            raise exported_error("computing features")
        names = [OUTPUT] if self.threshold is None else [OUTPUT, SCORES]
        return Outputs(*self._session.run(names, {INPUT: images}))

    def use_all_cores(self) -> None:
        """Do nothing: onnxruntime divides every operation among all cores."""


def load_onnx(path: Path, device: str = "auto") -> OnnxRunner:
    """Load and check an exported file, to run on all usable cores.

    Raises ConfigError if onnxruntime is not installed, DeviceError for a device other than the
    CPU, ModelError for a file that is damaged, newer, or not exported by Onsight.
    """
    if device not in ("auto", "cpu"):
        raise DeviceError(f"an exported .onnx file runs on the CPU, not on '{device}'")
    require("onnxruntime", "run", f"running {path}")
    import onnxruntime

    data = _checked_bytes(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    # Spinning threads would take the cores that decode images and serve requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many types
        raise ModelError(
            f"onnxruntime {onnxruntime.__version__} cannot run {path}: {_first_line(error)}. "
            "Upgrade it: pip install -U onnxruntime"
        ) from error
    try:
        return OnnxRunner(_read_metadata(session), session)
    except (KeyError, TypeError, ValueError, ModelError) as error:
        raise ModelError(f"{path} is not a complete export of Onsight: {error}") from error


def _checked_bytes(path: Path) -> bytes:
    """Read an exported file and verify its checksum. Raises ModelError."""
    if path.exists() and not path.is_file():  # opening a FIFO would block forever
        raise ModelError(f"{path} is not a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    checksums = list(_CHECKSUM.finditer(data))
    if not checksums:
        raise ModelError(
            f"{path} was not exported by Onsight, or it is damaged: it has no Onsight checksum. "
            "Export a model with: onsight export MODEL"
        )
    if digest_around(data, checksums[-1].start(1)) != checksums[-1][1].decode():
        raise ModelError(
            f"{path} is damaged or was modified: its checksum does not match. Copy or export it "
            "again"
        )
    return data


def _read_metadata(session: "InferenceSession") -> dict[str, Any]:
    """Read the facts of an Onsight export and compare them with its inputs and outputs."""
    text = session.get_modelmeta().custom_metadata_map[METADATA_KEY]
    facts: dict[str, Any] = parse_json(text, "surrogateescape")
    if facts["format"] != FORMAT:
        raise ValueError(f"its format is {facts['format']!r}, not {FORMAT!r}")
    if facts["version"] != VERSION:
        raise ModelError(
            f"it has version {facts['version']} of the format, but this Onsight reads version "
            f"{VERSION}. Upgrade: pip install -U onsight"
        )
    if not isinstance(facts["model"], str):
        raise ValueError("its network has no name")
    size = Preprocessing.of(facts["image"]).format
    expected = [size.height, size.width, size.channels], [len(facts["classes"])]
    inputs = {node.name: node.shape[1:] for node in session.get_inputs()}
    outputs = {node.name: node.shape[1:] for node in session.get_outputs()}
    if (inputs.get(INPUT), outputs.get(OUTPUT)) != expected or len(inputs) != 1:
        raise ValueError("its inputs and outputs do not match its metadata")
    if "out_of_distribution" in facts and not (
        SCORES in outputs and math.isfinite(facts["out_of_distribution"]["threshold"])
    ):
        raise ValueError("its out-of-distribution detector is damaged")
    if not 0 < facts["temperature"] < math.inf or not isinstance(facts["results"], dict):
        raise ValueError("its temperature or results are damaged")
    return facts


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
