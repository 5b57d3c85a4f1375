"""What a model card is about: a model file, and the run folder around it if there is one."""

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

from onsight.data.sources.source import is_memory_name
from onsight.evaluation.results import Results
from onsight.models.file import FILE_NAME, ModelFile, load_model_file
from onsight.report.runfiles import Said, read_json


@dataclass(frozen=True)
class Subject:
    """A trained model and what is known of it.

    place: what to give to `onsight predict`. results: results.json if there is a run folder, else
    what the model file says; plan, environment: those files; None for what they lack.
    """

    name: str
    place: Path
    file: ModelFile
    results: Results
    plan: Said
    environment: Said

    @property
    def data_name(self) -> str:
        """The last part of DATA's name: where it lay on somebody's disk is nobody's business."""
        data = str(self.file.provenance.get("data") or "unnamed images")
        return data if is_memory_name(data) else PurePath(data).name or data

    @property
    def config(self) -> Said:
        """The settings of the run."""
        return Said(self.file.provenance.get("config") or {})


def read_subject(model: Path) -> Subject:
    """Read a run folder or a model file alone. Raises ModelError."""
    file = load_model_file(model)
    known: dict[str, Any] = dict(file.results)
    plan = environment = None
    if model.is_dir():
        known |= read_json(model / "results.json") or {}
        plan, environment = read_json(model / "plan.json"), read_json(model / "environment.json")
    return Subject(
        name=model.resolve().name if model.is_dir() else _name_of(model),
        place=model,
        file=file,
        results=cast(Results, Said(known)),
        plan=plan or Said(),
        environment=environment or Said(),
    )


def _name_of(model: Path) -> str:
    whole = model.resolve()
    return whole.parent.name if whole.name == FILE_NAME else whole.stem
