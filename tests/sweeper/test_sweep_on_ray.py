"""The runs of a sweep as trials of Ray Tune; Ray itself is played by a few lines here."""

import os
import socket
import sys
from types import ModuleType, SimpleNamespace

import pytest

from onsight.errors import ConfigError, Interrupted
from onsight.report.console import SilentReporter
from onsight.sweeper import runs as sweep_runs
from onsight.sweeper.plan import PlannedRun


class Tuner:
    """Calls the trial for every value of the grid, again if it was lost and may be."""

    def __init__(self, trial, param_space, run_config):
        (self.key, self.values) = next(iter(param_space.items()))
        self.trial, self.config = trial, run_config

    def fit(self):
        print("noise on stdout")
        return [self._tried({self.key: value}) for value in self.values]

    def _tried(self, config):
        for _ in range(1 + self.config.failure_config.max_failures):
            try:
                return SimpleNamespace(config=config, metrics=self.trial(config), error=None)
            except Interrupted as error:
                lost = error
        return SimpleNamespace(config=config, metrics=None, error=lost)


@pytest.fixture
def ray(monkeypatch, tmp_path):
    """A cluster of these machines; how it is called is recorded."""
    tune = ModuleType("ray.tune")
    tune.Tuner, tune.grid_search = Tuner, list
    tune.RunConfig = tune.FailureConfig = SimpleNamespace
    tune.with_parameters = lambda trial, **given: lambda config: trial(config, **given)
    fake = ModuleType("ray")
    fake.tune, fake.calls, fake.resources, fake.machines = tune, [], [], [{"CPU": 8.0}]
    tune.with_resources = lambda trial, resources: fake.resources.append(resources) or trial
    fake.is_initialized = lambda: False
    fake.init = lambda **options: fake.calls.append(options)
    fake.shutdown = lambda: fake.calls.append("shutdown")
    fake.nodes = lambda: [{"Alive": True, "Resources": machine} for machine in fake.machines]
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "no cluster runs here"))
    return fake


def planned(tmp_path, *names):
    return [PlannedRun(tmp_path / name, {}, {}) for name in names]


def run_on_ray(runs, cluster="auto"):
    return sweep_runs.run_on_ray(runs, "demo", SilentReporter(), cluster)


def test_every_run_is_a_trial_and_a_lost_one_starts_again(ray, tmp_path, monkeypatch, capsys):
    tried = []

    def train_run(run, data):
        tried.append((run.name, run.fields["threads"]))
        if run.name == "lost" or len(tried) == 1:
            raise Interrupted("stopped", 15)
        return "no such model" if run.name == "bad" else ""

    monkeypatch.setattr(sweep_runs, "train_run", train_run)
    errors = run_on_ray(planned(tmp_path, "a", "bad", "lost"))
    assert errors == {"a": "", "bad": "no such model", "lost": "its trial failed: stopped"}
    assert tried == [("a", 8), ("a", 8), ("bad", 8), *[("lost", 8)] * 4]
    assert ray.calls[-1] == "shutdown"
    assert capsys.readouterr().out == ""


def test_a_sweep_connects_to_ray_as_a_training_does(ray):
    run_on_ray([])
    assert ray.calls[0]["address"] == "local"  # auto: there is none, so one is started
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["RAY_ADDRESS"] = f"127.0.0.1:{server.getsockname()[1]}"
        run_on_ray([])
    assert ray.calls[2]["address"] == os.environ["RAY_ADDRESS"]


@pytest.mark.parametrize(
    ("machines", "resources"),
    [
        ([{"CPU": 8.0}, {"CPU": 4.0}], {"cpu": 4.0, "gpu": 0}),
        ([{"CPU": 2.0}, {"CPU": 32.0, "GPU": 4.0}], {"cpu": 8.0, "gpu": 1}),
        ([{"CPU": 1.0, "GPU": 2.0}], {"cpu": 1, "gpu": 1}),
    ],
)
def test_a_run_gets_a_gpu_with_its_cores_or_a_machines_cores(ray, machines, resources):
    ray.machines = machines
    assert sweep_runs._compute_resources(ray) == resources


def test_a_head_without_cores_is_no_machine_for_runs(ray):
    ray.machines = [{"memory": 1.0}, {"CPU": 6.0}]
    assert sweep_runs._compute_resources(ray) == {"cpu": 6.0, "gpu": 0}


def test_no_cluster_no_extra_and_no_shared_disk_are_explained(ray, tmp_path, monkeypatch):
    (run,) = planned(tmp_path / "elsewhere", "a")
    assert "not visible there" in sweep_runs._run_trial({"run": "a"}, [run], "demo", 1)["error"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"ray://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match="no Ray cluster answers at"):
        run_on_ray([], closed)
    with pytest.raises(ConfigError, match="is not an address: give auto, ray://HOST:PORT or"):
        run_on_ray([], "http://host:80")
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[cluster\]'"):
        run_on_ray([])


def test_a_finished_sweep_needs_no_trial(ray, tmp_path):
    (run,) = planned(tmp_path, "a")
    run.path.mkdir()
    (run.path / "results.json").write_text('{"report": "report.html"}')
    assert run_on_ray([run]) == {"a": ""}
    assert ray.resources == []
