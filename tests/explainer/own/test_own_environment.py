"""Settings of threads in the environment of a run: named, and a run without them is timed."""

import io
import os

import pytest
from rich.console import Console

from onsight.config import make_config
from onsight.explainer.bench import FlagChange, FlagTrial, FreshRun, UnsetVariables, thread_settings
from onsight.explainer.explain_run import explain_data
from onsight.explainer.show_run import cause, explanation_facts, print_explanation, verdict
from onsight.report.console import SilentReporter
from onsight_explain.search import TrialFailed
from onsight_explain.threads import THREAD_VARIABLES

SMALL = {"model": "lenet", "batch_size": 4, "image_size": "32", "threads": 1, "plan": "default"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Two settings, of which one is harmless, and nothing else."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


@pytest.fixture
def explained(bars, monkeypatch):
    """A function that explains the run; rate: without the settings, with other flags or not."""

    def explain(rate, flagged=50.0):
        monkeypatch.setattr(FreshRun, "measure", lambda run, flags, seconds: rate(list(flags)))
        monkeypatch.setattr(
            FlagTrial,
            "measure",
            lambda trial, _: flagged if trial.config != trial.bench.config else 100.0,
        )
        return explain_data(str(bars), make_config(SMALL), 4.0, True, SilentReporter())

    return explain


def test_settings_that_slow_a_run_down_are_the_cause_and_are_named_with_what_to_unset(explained):
    found = explained(lambda flags: 300.0 if not flags else 200.0)
    assert cause(found) == "threads"
    words = verdict(found)
    assert "held back by OMP_WAIT_POLICY=passive and OMP_NUM_THREADS=2 in the environment" in words
    assert "with OMP_WAIT_POLICY and OMP_NUM_THREADS unset it is at least 3.0 times" in words
    told = explanation_facts(found)
    assert told["best"]["unset"] == ["OMP_WAIT_POLICY", "OMP_NUM_THREADS"]
    assert told["thread_settings"] == {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2"}
    assert found.after is None  # this process still has them


def test_flags_are_tried_in_the_process_without_them(explained):
    def rate(flags):
        return 600.0 if flags == [FlagChange("precision", "bf16")] else 300.0

    found = explained(rate)
    assert found.best.groups == {"environment", "precision"}
    assert "with OMP_WAIT_POLICY and OMP_NUM_THREADS unset and --precision bf16" in verdict(found)


def test_harmless_settings_are_named_and_are_no_cause(explained):
    found = explained(lambda flags: 100.0)
    assert cause(found) != "threads"
    page = io.StringIO()
    print_explanation(found, Console(file=page, width=200))
    assert (
        "Set in the environment: OMP_WAIT_POLICY=passive and OMP_NUM_THREADS=2" in page.getvalue()
    )
    assert "OMP_WAIT_POLICY and OMP_NUM_THREADS unset (1.00x, 1 round)" in " ".join(
        page.getvalue().split()
    )


def test_what_onsight_sets_for_itself_is_none_of_them(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    assert thread_settings().names == ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name)
    assert thread_settings() is None


def test_the_run_is_really_timed_in_a_process_without_them(bars, hostile_folder):
    without = UnsetVariables(("OMP_WAIT_POLICY",), ("passive",))
    fresh = FreshRun(str(bars), make_config(SMALL), without)
    try:
        assert fresh.measure([], 0.05) > 0
        with open(f"/proc/{fresh._child.pid}/environ", "rb") as file:
            given = file.read()
        assert b"OMP_WAIT_POLICY" not in given
        assert b"OMP_NUM_THREADS=2" in given
        assert fresh.measure([FlagChange("precision", "bf16")], 0.05) > 0
        with pytest.raises(TrialFailed, match="not a precision"):
            fresh.measure([FlagChange("precision", "not a precision")], 0.05)
    finally:
        fresh.close()
    with pytest.raises(ProcessLookupError):
        os.kill(fresh._child.pid, 0)


def test_a_process_that_fails_gives_its_own_last_words(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise RuntimeError('planted')\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    fresh = FreshRun(str(tmp_path), make_config(SMALL), UnsetVariables(("A",), ("1",)))
    with pytest.raises(TrialFailed, match="RuntimeError: planted"):
        fresh.measure([], 0.05)
    fresh.close()
