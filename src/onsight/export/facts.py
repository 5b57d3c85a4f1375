"""What an exported file says about itself, in the manner of the model file."""

from typing import Any

from onsight.inference.onnx_runner import FORMAT, VERSION
from onsight.models.file import ModelFile

_PER_IMAGE_OR_PAIR = {"calibration", "calibration_before", "confusion", "notes"}
_ORIGIN = ("data", "found", "data_key", "versions")


def facts_of(file: ModelFile, detects_out_of_distribution: bool = False) -> dict[str, Any]:
    """The model's name, classes, preprocessing, temperature, results and origin as JSON values.

    detects_out_of_distribution: whether the graph gives the score of unlike images too.
    """
    kept = {name: value for name, value in file.results.items() if name not in _PER_IMAGE_OR_PAIR}
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "model": file.model,
        "classes": list(file.classes),
        "image": file.preprocessing.facts(),
        "temperature": file.temperature,
        "results": kept,
        "provenance": {name: file.provenance[name] for name in _ORIGIN if name in file.provenance},
    }
    if file.out_of_distribution and detects_out_of_distribution:
        facts["out_of_distribution"] = {
            "threshold": file.out_of_distribution.threshold,
            "share": file.out_of_distribution.share,
        }
    return facts
