"""What the user wants of predictions: which rows, and where they go."""

from dataclasses import dataclass
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.files import check_writable
from onsight.inference.rows.parquet_file import refuse_without_pyarrow
from onsight.inference.rows.partial_file import check_resumable, refuse_interrupted

STDOUT = "-"


@dataclass(frozen=True)
class Wanted:
    """The options of `onsight predict`.

    csv, jsonl: a file, or - for stdout; top: how many of the best classes a row has;
    min_confidence: below this probability the class is withheld; grid: a PNG file; heat: a new
    folder for a heat map of each picture.
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
    def files(self) -> list[Path]:
        """All files to write."""
        return [*self.text_files.values(), *filter(None, (self.parquet, self.grid))]

    @property
    def on_stdout(self) -> list[str]:
        """The forms asked for on stdout."""
        given = {"csv": self.csv == STDOUT, "jsonl": self.jsonl == STDOUT, "json": self.as_json}
        return [name for name, is_given in given.items() if is_given]

    def check(self) -> None:
        """Find what cannot work before a model is loaded.

        Raises ConfigError, OutputError, DiskError.
        """
        if self.top < 0:
            raise ConfigError(f"--top {self.top} must be at least 1")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ConfigError(f"--min-confidence {self.min_confidence} must be from 0 to 1")
        if len(self.on_stdout) > 1:
            flags = " and ".join(f"--{name}" for name in self.on_stdout)
            raise ConfigError(f"{flags} cannot both go to stdout: give one of them a file")
        if len(set(self.files)) < len(self.files):
            raise ConfigError("two kinds of output cannot go to the same file")
        self._check_files()
        alone = len(self.files) == 1 and self.text_files and not self.on_stdout and not self.heat
        if self.resume and not alone:
            raise ConfigError(
                "--resume continues one file of --csv or --jsonl, and nothing else can be written "
                "along with it: leave out --parquet, --json, --save-grid and --heatmap"
            )
        for path in self.text_files.values():
            (check_resumable if self.resume else refuse_interrupted)(path)

    def _check_files(self) -> None:
        for path in self.files:
            if path.exists() and not path.is_dir() and not path.is_file():
                raise OutputError(f"{path} is not a regular file; to write to stdout, give -")
            check_writable(path)
        if self.parquet:
            refuse_without_pyarrow(self.parquet)
        if self.grid:
            from onsight.inference.grid import check_grid_place  # loads matplotlib

            check_grid_place(self.grid)
        if self.heat:
            from onsight.inference.heat_files import check_heat_folder  # loads torch

            check_heat_folder(self.heat)
