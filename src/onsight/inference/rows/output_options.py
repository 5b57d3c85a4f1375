"""What the user wants of predictions: which rows, and where they go."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.files import check_output, refuse_inside_data
from onsight.inference.inputs.open_inputs import STDIN
from onsight.inference.job import files_of_model
from onsight.inference.rows.parquet_file import refuse_without_pyarrow
from onsight.inference.rows.partial_file import check_resumable, refuse_interrupted

STDOUT = "-"


@dataclass(frozen=True)
class OutputOptions:
    """The options of `onsight predict`.

    csv, jsonl: a file, or - for stdout; top: how many of the best classes a row has;
    min_confidence: below this probability the class is withheld; grid: a PNG file; heat: a new
    folder for a heat map of each image.
    """

    csv: str | None = None
    jsonl: str | None = None
    parquet: Path | None = None
    as_json: bool = False
    top: int = 0
    min_confidence: float | None = None
    grid: Path | None = None
    heat: Path | None = None
    resume: bool = False

    @property
    def text_files(self) -> dict[str, Path]:
        """The files of text by their form, csv or jsonl."""
        given = {"csv": self.csv, "jsonl": self.jsonl}
        return {name: Path(path) for name, path in given.items() if path and path != STDOUT}

    @property
    def files(self) -> dict[str, Path]:
        """All files to write, by their flags."""
        others = {"--parquet": self.parquet, "--save-grid": self.grid}
        texts = {f"--{name}": path for name, path in self.text_files.items()}
        return texts | {flag: path for flag, path in others.items() if path}

    @property
    def on_stdout(self) -> list[str]:
        """The forms asked for on stdout."""
        given = {"csv": self.csv == STDOUT, "jsonl": self.jsonl == STDOUT, "json": self.as_json}
        return [name for name, is_given in given.items() if is_given]

    def check(self, model: Path, inputs: Sequence[str]) -> None:
        """Find what cannot work before a model is loaded. inputs: words as for open_inputs.

        Raises ConfigError, OutputError, DiskError.
        """
        if self.top < 0:
            raise ConfigError(f"--top {self.top} must be at least 1")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ConfigError(f"--min-confidence {self.min_confidence} must be from 0 to 1")
        if len(self.on_stdout) > 1:
            flags = " and ".join(f"--{name}" for name in self.on_stdout)
            raise ConfigError(f"{flags} cannot both go to stdout: give one of them a file")
        if len(set(map(os.path.realpath, self.files.values()))) < len(self.files):
            raise ConfigError("two kinds of output cannot go to the same file")
        self._check_files(model, ["/dev/stdin" if word == STDIN else word for word in inputs])
        alone = len(self.files) == 1 and self.text_files and not self.on_stdout and not self.heat
        if self.resume and not alone:
            raise ConfigError(
                "--resume continues one file of --csv or --jsonl, and nothing else can be written "
                "along with it: leave out --parquet, --json, --save-grid and --heatmap"
            )
        for path in self.text_files.values():
            (check_resumable if self.resume else refuse_interrupted)(path)

    def _check_files(self, model: Path, inputs: Sequence[str]) -> None:
        for flag, path in self.files.items():
            if os.path.exists(path) and not path.is_dir() and not path.is_file():
                raise OutputError(f"{path} is not a regular file; to write to stdout, give -")
            check_output(flag, path, model=files_of_model(model), input=inputs)
        if self.parquet:
            refuse_without_pyarrow(self.parquet)
        if self.grid:
            from onsight.inference.grid import check_grid_name  # loads matplotlib

            check_grid_name(self.grid)
        if self.heat:
            from onsight.inference.heat_files import check_heat_folder  # loads torch

            for one in inputs:
                refuse_inside_data(self.heat, one, "../maps", "--heatmap")
            check_heat_folder(self.heat)
