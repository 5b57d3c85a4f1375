"""Runs logged to MLflow and Weights & Biases: here to stand-ins, and to the libraries if present.

The stand-ins have the part of each library's border that Onsight uses, and refuse anything else.
"""

import json
import signal
import sys
from collections import defaultdict
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest

import onsight
from onsight.errors import ConfigError, Interrupted
from onsight.ranks import world
from onsight.report.console import Reporter, SilentReporter
from onsight.training.loggers import wandb as wandb_logger
from onsight.training.loggers.logger import read_run_id

SETTINGS = {
    "model": "lenet",
    "image_size": "16",
    "batch_size": 48,
    "epochs": 3,
    "threads": 1,
    "plan": "default",
}
FIGURES = ("train_loss", "validation_loss", "validation_accuracy", "learning_rate")


class Warnings(SilentReporter):
    def __init__(self):
        super().__init__()
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


class StandInClient:
    """MlflowClient of a server that lives as long as the test."""

    def __init__(self, server, tracking_uri):
        self.server = server
        server.uris.append(tracking_uri)

    def get_experiment_by_name(self, name):
        known = self.server.experiments
        return SimpleNamespace(experiment_id=known[name]) if name in known else None

    def create_experiment(self, name, artifact_location):
        return self.server.experiments.setdefault(name, "7")

    def create_run(self, experiment_id, run_name):
        assert experiment_id == "7"
        run_id = f"run-{len(self.server.runs)}"
        self.server.runs[run_id] = SimpleNamespace(
            name=run_name, params={}, metrics=defaultdict(dict), tags={}, status=["RUNNING"]
        )
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id, metrics=(), params=()):
        run = self.server.runs[run_id]
        assert len(params) <= 100
        run.params |= {one.key: one.value for one in params}
        for one in metrics:
            run.metrics[one.key][one.step] = one.value

    def set_tag(self, run_id, key, value):
        self.server.runs[run_id].tags[key] = value

    def update_run(self, run_id, status):
        self.server.runs[run_id].status.append(status)

    def set_terminated(self, run_id, status):
        self.server.runs[run_id].status.append(status)


def put_module(monkeypatch, name, **contents):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def mlflow(monkeypatch):
    server = SimpleNamespace(uris=[], experiments={}, runs={})

    def metric(key, value, timestamp, step):
        return SimpleNamespace(key=key, value=value, step=step)

    def param(key, value):
        return SimpleNamespace(key=key, value=value)

    put_module(
        monkeypatch, "mlflow", MlflowClient=lambda tracking_uri: StandInClient(server, tracking_uri)
    )
    put_module(monkeypatch, "mlflow.entities", Metric=metric, Param=param)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return server


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """The runs that were opened, in order."""
    runs = []

    def init(**given):
        assert given["resume"] == "allow"
        run = SimpleNamespace(given=given, rows=[], summary={}, ended=[])
        run.log = run.rows.append
        run.define_metric = lambda name, step_metric=None: None
        run.finish = lambda exit_code: run.ended.append(exit_code)
        runs.append(run)
        return run

    put_module(monkeypatch, "wandb", init=init, Settings=lambda **settings: settings)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return runs


class StopAfter:
    signal_number = signal.SIGTERM

    def __init__(self, steps):
        self.steps = steps

    def __bool__(self):
        self.steps -= 1
        return self.steps <= 0


def rows_of(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_a_stopped_run_goes_on_as_the_same_run(bars, tmp_path, mlflow, wandb, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: StopAfter(4))
        with pytest.raises(Interrupted):
            onsight.train(bars, out=out, log="mlflow,wandb", reporter=SilentReporter(), **SETTINGS)
    assert [one.ended for one in wandb] == [[1]]
    assert mlflow.runs["run-0"].status[-1] == "KILLED"
    run = onsight.train(bars, out=out, resume=True, reporter=SilentReporter())
    rows = rows_of(run)
    assert [row["epoch"] for row in rows] == [1, 2, 3]

    assert [*mlflow.runs] == ["run-0"] == [read_run_id(out, "mlflow")]
    kept = mlflow.runs["run-0"]
    for name in FIGURES:
        assert kept.metrics[name] == {row["epoch"]: row[name] for row in rows}
    assert kept.status[-1] == "FINISHED"
    assert kept.params["epochs"] == "3"
    assert kept.params["data"] == str(bars)
    assert set(kept.metrics["final_accuracy_low"].values()) == {run.results["accuracy_low"]}
    assert kept.tags == {"report": str(run.report)}
    assert set(mlflow.uris) == {f"sqlite:///{out / 'mlflow.db'}"}

    first, again = wandb
    assert first.given["id"] == again.given["id"] == read_run_id(out, "wandb")
    assert again.given["mode"] == "offline"
    logged = {row["epoch"]: row for row in first.rows + again.rows}
    for name in FIGURES:
        assert [logged[row["epoch"]][name] for row in rows] == [row[name] for row in rows]
    assert again.ended == [0]
    assert again.summary["final_accuracy"] == run.accuracy
    assert again.given["config"]["epochs"] == 3
    assert not (out / "tensorboard").exists()


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_logger_that_fails_is_named_once_and_changes_nothing(
    shared_bars, tmp_path, wandb, monkeypatch, where
):
    def fail(*args, **given):
        raise OSError("no route\nto host")

    if where == "init":
        monkeypatch.setattr(sys.modules["wandb"], "init", fail)
    else:
        init = sys.modules["wandb"].init

        def broken(**given):
            run = init(**given)
            setattr(run, where, fail)
            return run

        monkeypatch.setattr(sys.modules["wandb"], "init", broken)
    reporter = Warnings()
    run = onsight.train(
        shared_bars, out=tmp_path / "run", log="wandb", reporter=reporter, **SETTINGS
    )
    failed = [text for text in reporter.warnings if "wandb" in text]
    assert failed == ["the run continues without wandb, which failed: OSError: no route to host"]
    assert len(rows_of(run)) == 3


@pytest.mark.parametrize(
    ("environment", "login", "mode"),
    [
        ({}, "", "offline"),
        ({"WANDB_MODE": "disabled"}, "", None),
        ({"WANDB_API_KEY": "k"}, "", "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "", None),
        ({}, "api.wandb.ai", "online"),
        ({}, "elsewhere.org", "offline"),
        ({"WANDB_BASE_URL": "https://own.example:8080"}, "own.example", "online"),
    ],
)
def test_the_network_is_used_only_by_those_who_logged_in(
    wandb, tmp_path, monkeypatch, environment, login, mode
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if login:
        (tmp_path / "netrc").write_text(f"machine {login} login user password k\n")
        (tmp_path / "netrc").chmod(0o600)
    assert wandb_logger._choose_mode() == mode


def test_nobody_is_asked_for_a_key(wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigError, match="wandb login"):
        wandb_logger._choose_mode()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_library_is_named_before_any_work(bars, tmp_path, monkeypatch, name):
    monkeypatch.setattr(
        "onsight.installation.find_spec",
        lambda wanted: None if wanted == name else find_spec(wanted),
    )
    with pytest.raises(ConfigError, match=rf"pip install .*\[{name}\]'"):
        onsight.train(bars, out=tmp_path / "run", log=f"tensorboard,{name}", reporter=Reporter())
    assert not (tmp_path / "run").exists()


def test_without_loggers_there_is_only_the_table(shared_bars, tmp_path):
    run = onsight.train(
        shared_bars, out=tmp_path / "run", log="none", reporter=SilentReporter(), **SETTINGS
    )
    assert len(rows_of(run)) == 3
    assert not (run.path / "tensorboard").exists()


def test_mlflow_itself_keeps_a_run_in_its_folder(shared_bars, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip("mlflow", exc_type=ImportError)
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    out = tmp_path / "run"
    reporter = Warnings()
    run = onsight.train(shared_bars, out=out, log="mlflow", reporter=reporter, **SETTINGS)
    assert not [text for text in reporter.warnings if "mlflow" in text]
    client = MlflowClient(tracking_uri=f"sqlite:///{out / 'mlflow.db'}")
    kept = client.get_run(read_run_id(out, "mlflow"))
    assert kept.info.status == "FINISHED"
    assert kept.data.metrics["final_accuracy"] == run.accuracy
    history = client.get_metric_history(kept.info.run_id, "train_loss")
    assert [point.value for point in history] == [row["train_loss"] for row in rows_of(run)]


def test_wandb_itself_keeps_a_run_in_its_folder(shared_bars, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    reporter = Warnings()
    onsight.train(shared_bars, out=out, log="wandb", reporter=reporter, **SETTINGS)
    assert not [text for text in reporter.warnings if "wandb" in text]
    files = [*out.glob(f"wandb/offline-run-*-{read_run_id(out, 'wandb')}/*.wandb")]
    assert len(files) == 1
    assert files[0].stat().st_size > 1000
