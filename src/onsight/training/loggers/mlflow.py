"""Logs to MLflow: to the server $MLFLOW_TRACKING_URI, or else a database in the run folder."""

import logging
import os
import time
import warnings
from collections.abc import Mapping

from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.training.loggers.logger import (
    LoggedRun,
    get_report_path,
    read_run_id,
    select_epoch_figures,
    select_final_figures,
    write_run_id,
)

_MAX_PARAMETERS_PER_CALL = 100  # MLflow's limit
_EXPERIMENT = "onsight"


class MlflowLogger:
    """Logs with an `MlflowClient`, which leaves MLflow's global state alone."""

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no network access but logging
        from mlflow import MlflowClient

        logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # hide database migrations
        server = os.environ.get("MLFLOW_TRACKING_URI")
        folder = run.folder.absolute()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the libraries that MLflow uses
            self.client = MlflowClient(tracking_uri=server or f"sqlite:///{folder / 'mlflow.db'}")
            self.run_id = read_run_id(run.folder, "mlflow") or self._create_run(run, server is None)

    def begin(self, epochs: int, steps: int) -> None:
        """Mark the run as running; epochs that a resumed run repeats are logged twice."""
        self.client.update_run(self.run_id, status="RUNNING")

    def log_epoch(self, row: EpochRow) -> None:
        self._log(select_epoch_figures(row), row["epoch"])

    def log_line(self, line: LossLine, step: int) -> None:
        self._log({"step_loss": line["loss"]}, step)

    def log_results(self, results: Results) -> None:
        self._log(select_final_figures(results), results["epochs"])
        self.client.set_tag(self.run_id, "report", get_report_path(results))

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")

    def _create_run(self, run: LoggedRun, is_local: bool) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = self.client.get_experiment_by_name(name)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            artifacts = (run.folder.absolute() / "mlartifacts").as_uri() if is_local else None
            experiment_id = self.client.create_experiment(name, artifacts)
        created = self.client.create_run(experiment_id, run_name=run.folder.resolve().name)
        run_id: str = created.info.run_id
        settings = {"data": run.data, **run.config}
        params = [Param(key, str(value)) for key, value in settings.items()]
        for start in range(0, len(params), _MAX_PARAMETERS_PER_CALL):
            part = params[start : start + _MAX_PARAMETERS_PER_CALL]
            self.client.log_batch(run_id, params=part)
        write_run_id(run.folder, "mlflow", run_id)
        return run_id

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value in figures.items()]
        self.client.log_batch(self.run_id, metrics=metrics)
