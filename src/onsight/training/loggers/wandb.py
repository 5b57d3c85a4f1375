"""Weights & Biases: offline in the run folder, unless a mode or a key says otherwise."""

import netrc
import os
import secrets
from urllib.parse import urlparse

from onsight.errors import ConfigError
from onsight.evaluation.results import EpochRow, LossLine, Results
from onsight.training.loggers.logger import (
    LoggedRun,
    epoch_figures,
    final_figures,
    keep_id,
    kept_id,
    report_place,
)

_START_SECONDS, _END_SECONDS = 30, 120  # the longest that a run waits for a server
_SERVER = "https://api.wandb.ai"


class WandbLogger:
    """Logs to a run of Weights & Biases, whose folder `wandb/` is in the run folder."""

    def __init__(self, run: LoggedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nobody asked for that network
        import wandb

        name = kept_id(run.folder, "wandb") or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "onsight"),
            name=run.folder.resolve().name,
            id=name,
            resume="allow",
            dir=str(run.folder.absolute()),
            mode=_mode(),
            config={"data": run.data, **run.config},
            settings=wandb.Settings(
                silent=True,
                console="off",  # a run's lines are its own
                init_timeout=_START_SECONDS,
                finish_timeout=_END_SECONDS,
            ),
        )
        keep_id(run.folder, "wandb", name)
        for step in ("epoch", "step"):  # a resumed run repeats steps, which W&B's own count hides
            self.run.define_metric(step)
        self.run.define_metric("*", step_metric="epoch")
        self.run.define_metric("step_loss", step_metric="step")

    def begin(self, epochs: int, steps: int) -> None:
        """Nothing: the run was opened, or reopened, by its name."""

    def log_epoch(self, row: EpochRow) -> None:
        """Log an epoch's figures."""
        self.run.log({"epoch": row["epoch"], **epoch_figures(row)})

    def log_line(self, line: LossLine, step: int) -> None:
        """Log a line's mean loss at a step of the whole run."""
        self.run.log({"step": step, "step_loss": line["loss"]})

    def log_results(self, results: Results) -> None:
        """Put the accuracy with its interval into the run's summary, and where the report is."""
        self.run.summary.update({**final_figures(results), "report": report_place(results)})

    def close(self, finished: bool) -> None:
        """End the run, as finished or as stopped."""
        self.run.finish(exit_code=0 if finished else 1)


def _mode() -> str | None:
    """offline without a key; None for what $WANDB_MODE says. Raises ConfigError.

    Without a key, an online mode would ask for one, and training would wait for the answer.
    """
    asked = os.environ.get("WANDB_MODE")
    if _has_key():
        return None if asked else "online"
    if asked in ("online", "shared"):
        raise ConfigError(f"WANDB_MODE is {asked}, but there is no key: wandb login")
    return None if asked else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", _SERVER)).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
