"""Small changes of behaviour that the comparison must report; each is planted in a copy."""

from typing import NamedTuple


class PlantedChange(NamedTuple):
    """A text that occurs once in a file, its replacement, and the scenario that must report it."""

    file: str
    text: str
    replacement: str
    scenario: str


PLANTED_CHANGES = (
    PlantedChange(
        "src/onsight/data/normalization.py",
        "variance.sqrt().clamp(min=1.0)",
        "variance.sqrt().clamp(min=1.0) * 1.0001",
        "folder",
    ),
    PlantedChange(
        "src/onsight/data/split.py",
        "number < test_fraction)] = TEST",
        "number < 0.5)] = TEST",
        "zip",
    ),
    PlantedChange(
        "src/onsight/models/classic.py",
        "nn.Conv2d(6, 16, 5),",
        "nn.Conv2d(6, 16, 5, bias=False),",
        "folder",
    ),
    PlantedChange(
        "src/onsight/step/optim.py",
        "if p.ndim > 1]",
        "if p.ndim > 3]",
        "folder",
    ),
    PlantedChange(
        "src/onsight/evaluation/statistics.py",
        "scale = 1 + z * z / count",
        "scale = 1 + z / count",
        "folder",
    ),
    PlantedChange(
        "src/onsight/inference/predictor.py",
        "winners = outputs.probabilities.argmax(axis=1)",
        "winners = outputs.probabilities.argmin(axis=1)",
        "predict and evaluate",
    ),
    PlantedChange(
        "packages/onsight-lint/src/onsight_lint/rules/missing_train.py",
        'id="missing-train"',
        'id="missing-mode"',
        "lint",
    ),
    PlantedChange(
        "src/onsight/data/sources/find.py",
        "{data} does not exist.{did",
        "{data} is not there.{did",
        "refused: no data",
    ),
    PlantedChange(
        "src/onsight/audit/images.py",
        '"both are used, on the same side of every split"',
        '"both are used"',
        "check",
    ),
    PlantedChange(
        "src/onsight/export/whole.py",
        "(logits.float() / self.temperature).softmax(dim=1)",
        "(logits.float() * 1.01).softmax(dim=1)",
        "export to ONNX",
    ),
    PlantedChange(
        "packages/onsight-explain/src/onsight_explain/what_ifs/rare_reads.py",
        "_READS = 4 ",
        "_READS = 400 ",
        "explain sync_in_loop",
    ),
)
