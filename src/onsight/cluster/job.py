"""A training job as it travels to the machines of a cluster."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onsight.errors import DataError, OutputError

_CHECKPOINT = Path("checkpoints") / "last.safetensors"
_CONFIG = "config.toml"


@dataclass(frozen=True)
class Job:
    """Arguments of `train` as plain values; all paths are absolute.

    is_path: whether data is a path rather than a name; spent_seconds: of a budget, so far.
    """

    data: str
    is_path: bool
    out: str
    resume: bool
    spent_seconds: float
    fields: dict[str, Any] = field(default_factory=dict)

    def refuse_unseen(self, machine: str) -> None:
        """Raise DataError, OutputError for what the machine that runs this does not see."""
        remedy = "put it on storage that every machine of the cluster sees under the same path"
        if self.is_path and not os.path.exists(self.data):
            raise DataError(f"the machine {machine} does not see {self.data}: {remedy}")
        if not os.path.isdir(self.out):
            raise OutputError(
                f"the machine {machine} does not see the run folder {self.out}: {remedy}"
            )

    @property
    def is_begun(self) -> bool:
        """Whether the run folder holds a run to resume."""
        return os.path.exists(os.path.join(self.out, _CONFIG))

    def arguments(self, goes_on: bool) -> dict[str, Any]:
        """Arguments of `train` besides paths; goes_on: the run folder has all that it keeps.

        What it keeps may not be given again as it was asked for, such as auto.
        """
        if not goes_on or self.resume:
            return dict(self.fields)
        from onsight.training.run import FREE_ON_RESUME

        own_code = ":" in str(self.fields.get("model", ""))  # runs only if it is named again
        kept = FREE_ON_RESUME | ({"model"} if own_code else set())
        return {name: value for name, value in self.fields.items() if name in kept}

    @property
    def checkpoint(self) -> str:
        """What tells the latest checkpoint from others; empty if there is none."""
        try:
            facts = os.stat(Path(self.out) / _CHECKPOINT)
        except OSError:
            return ""
        return f"{facts.st_mtime_ns} {facts.st_size}"
