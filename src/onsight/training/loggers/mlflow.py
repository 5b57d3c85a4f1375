"""MLflow: the server of $MLFLOW_TRACKING_URI, or else a database in the run folder."""

import logging
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.training.loggers.logger import (
    LoggedRun,
    epoch_figures,
    final_figures,
    keep_id,
    kept_id,
    report_place,
)

_PARAMETERS_AT_ONCE = 100  # the most that MLflow takes
_EXPERIMENT = "onsight"


class MlflowLogger:
    """Logs through MLflow's client, so that nothing of MLflow's own state is changed."""

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for that network
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # how it makes its tables
        remote = os.environ.get("MLFLOW_TRACKING_URI")
        folder = run.folder.absolute()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's about the libraries that it uses
            self.client = MlflowClient(tracking_uri=remote or f"sqlite:///{folder / 'mlflow.db'}")
            self.run_id = kept_id(run.folder, "mlflow") or self._new_run(run, remote is None)

    def begin(self, epochs: int, steps: int) -> None:
        """Mark the run as running; what a resumed run repeats is written again."""
        self.client.update_run(self.run_id, status="RUNNING")

    def log_epoch(self, row: EpochRow) -> None:
        """Log an epoch's figures."""
        self._log(epoch_figures(row), row["epoch"])

    def log_line(self, line: LossLine, step: int) -> None:
        """Log a line's mean loss at a step of the whole run."""
        self._log({"step_loss": line["loss"]}, step)

    def log_results(self, results: Results) -> None:
        """Log the accuracy with its interval, and where the report is."""
        self._log(final_figures(results), results["epochs"])
        self.client.set_tag(self.run_id, "report", report_place(results))

    def close(self, finished: bool) -> None:
        """Mark the run as finished or stopped."""
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")

    def _new_run(self, run: LoggedRun, local: bool) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        known = self.client.get_experiment_by_name(name)
        place = (run.folder.absolute() / "mlartifacts").as_uri() if local else None
        experiment = known.experiment_id if known else self.client.create_experiment(name, place)
        made = self.client.create_run(experiment, run_name=run.folder.resolve().name)
        run_id: str = made.info.run_id
        settings = [Param(key, str(value)) for key, value in _settings(run).items()]
        for start in range(0, len(settings), _PARAMETERS_AT_ONCE):
            part = settings[start : start + _PARAMETERS_AT_ONCE]
            self.client.log_batch(run_id, params=part)
        keep_id(run.folder, "mlflow", run_id)
        return run_id

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in figures.items()]
        self.client.log_batch(self.run_id, metrics=metrics)


def _settings(run: LoggedRun) -> dict[str, Any]:
    return {"data": run.data, **run.config}
