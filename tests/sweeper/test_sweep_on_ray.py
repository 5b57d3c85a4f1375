"""The runs of a sweep as trials of Ray Tune; Ray itself is played by a few lines here."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from onsight.errors import ConfigError, Interrupted
from onsight.report.console import SilentReporter
from onsight.sweeper import on_ray
from onsight.sweeper.folder import PlannedRun


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
def ray(monkeypatch):
    """A cluster of these machines; what it was asked for is noted."""
    tune = ModuleType("ray.tune")
    tune.Tuner, tune.grid_search = Tuner, list
    tune.RunConfig = tune.FailureConfig = SimpleNamespace
    tune.with_parameters = lambda trial, **given: lambda config: trial(config, **given)
    made = ModuleType("ray")
    made.tune, made.asked, made.shares, made.machines = tune, [], [], [{"CPU": 8.0}]
    tune.with_resources = lambda trial, share: made.shares.append(share) or trial
    made.init = lambda **options: made.asked.append(options)
    made.shutdown = lambda: made.asked.append("shutdown")
    made.nodes = lambda: [{"Alive": True, "Resources": one} for one in made.machines]
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.tune", tune)
    return made


def runs(tmp_path, *names):
    return [PlannedRun(tmp_path / name, {}, {}) for name in names]


def test_every_run_is_a_trial_and_a_lost_one_starts_again(ray, tmp_path, monkeypatch, capsys):
    tried = []

    def run_one(run, data):
        tried.append((run.name, run.fields["threads"]))
        if run.name == "lost" or len(tried) == 1:
            raise Interrupted("stopped", 15)
        return "no such model" if run.name == "bad" else ""

    monkeypatch.setattr(on_ray, "run_one", run_one)
    run_all = on_ray.run_on("auto")
    errors = run_all(runs(tmp_path, "a", "bad", "lost"), "demo", SilentReporter())
    assert errors == {"a": "", "bad": "no such model", "lost": "its machine was lost: stopped"}
    assert tried == [("a", 8), ("a", 8), ("bad", 8), *[("lost", 8)] * 4]
    assert ray.asked[0]["address"] == "auto"
    assert ray.asked[-1] == "shutdown"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("machines", "share"),
    [
        ([{"CPU": 8.0}, {"CPU": 4.0}], {"cpu": 4.0, "gpu": 0}),
        ([{"CPU": 2.0}, {"CPU": 32.0, "GPU": 4.0}], {"cpu": 8.0, "gpu": 1}),
        ([{"CPU": 1.0, "GPU": 2.0}], {"cpu": 1, "gpu": 1}),
    ],
)
def test_a_run_takes_a_gpu_with_its_cores_or_a_machines_cores(ray, machines, share):
    ray.machines = machines
    assert on_ray._share() == share


def test_a_head_without_cores_is_no_machine_for_runs(ray):
    ray.machines = [{"memory": 1.0}, {"CPU": 6.0}]
    assert on_ray._share() == {"cpu": 6.0, "gpu": 0}


def test_no_cluster_no_extra_and_no_shared_disk_are_explained(ray, tmp_path, monkeypatch):
    def refuse(**options):
        raise ConnectionError("nobody listens")

    (run,) = runs(tmp_path / "elsewhere", "a")
    assert "not visible there" in on_ray._trial({"run": "a"}, [run], "demo", 1)["error"]
    ray.init = refuse
    with pytest.raises(ConfigError, match="no Ray cluster answers there"):
        on_ray.run_on("ray://host:10001")([], "demo", SilentReporter())
    for address in ("host", "ray://host", "http://host:80", "ray://"):
        with pytest.raises(ConfigError, match="is not an address: give auto, ray://HOST:PORT or"):
            on_ray.run_on(address)
    assert on_ray.run_on("host:6379")
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(ConfigError, match=r"pip install 'onsight\[cluster\]'"):
        on_ray.run_on("auto")


def test_a_finished_sweep_needs_no_trial(ray, tmp_path):
    (run,) = runs(tmp_path, "a")
    run.path.mkdir()
    (run.path / "results.json").write_text('{"report": "report.html"}')
    assert on_ray.run_on("auto")([run], "demo", SilentReporter()) == {"a": ""}
    assert ray.shares == []
