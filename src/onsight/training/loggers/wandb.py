"""Logs to Weights & Biases: offline in the run folder, unless there is a mode or an API key."""

import netrc
import os
import secrets
from urllib.parse import urlparse

from onsight.errors import ConfigError
from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.training.loggers.logger import (
    LoggedRun,
    get_report_path,
    read_run_id,
    select_epoch_figures,
    select_final_figures,
    write_run_id,
)

_INIT_TIMEOUT_SECONDS = 30
_FINISH_TIMEOUT_SECONDS = 120
_SERVER = "https://api.wandb.ai"


class WandbLogger:
    """Logs to a run of Weights & Biases, with its files in `wandb/` in the run folder."""

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no network access but logging
        import wandb

        run_id = read_run_id(run.folder, "wandb") or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "onsight"),
            name=run.folder.resolve().name,
            id=run_id,
            resume="allow",
            dir=str(run.folder.absolute()),
            mode=_choose_mode(),
            config={"data": run.data, **run.config},
            settings=wandb.Settings(
                silent=True,
                console="off",  # do not capture the console
                init_timeout=_INIT_TIMEOUT_SECONDS,
                finish_timeout=_FINISH_TIMEOUT_SECONDS,
            ),
        )
        write_run_id(run.folder, "wandb", run_id)
        # W&B drops points whose step it has already logged, such as those a resumed run repeats.
        for step in ("epoch", "step"):
            self.run.define_metric(step)
        self.run.define_metric("*", step_metric="epoch")
        self.run.define_metric("step_loss", step_metric="step")

    def begin(self, epochs: int, steps: int) -> None:
        """Do nothing, as the constructor has opened or reopened the run."""

    def log_epoch(self, row: EpochRow) -> None:
        self.run.log({"epoch": row["epoch"], **select_epoch_figures(row)})

    def log_line(self, line: LossLine, step: int) -> None:
        self.run.log({"step": step, "step_loss": line["loss"]})

    def log_results(self, results: Results) -> None:
        summary = {**select_final_figures(results), "report": get_report_path(results)}
        self.run.summary.update(summary)

    def close(self, finished: bool) -> None:
        """Finish the run, with a non-zero exit code if it was stopped."""
        self.run.finish(exit_code=0 if finished else 1)


def _choose_mode() -> str | None:
    """Choose the mode: "online" with an API key, else "offline"; None to follow $WANDB_MODE.

    Raises:
        ConfigError: $WANDB_MODE needs a key, but there is none; W&B would prompt for it, which
            blocks training.
    """
    mode = os.environ.get("WANDB_MODE")
    if _has_key():
        return None if mode else "online"
    if mode in ("online", "shared"):
        raise ConfigError(f"WANDB_MODE is {mode}, but there is no API key: run wandb login")
    return None if mode else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", _SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
