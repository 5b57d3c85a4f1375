"""Threads: how many, how they wait, and settings of a script or its environment."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.script.thread_settings import UNSET
from onsight_explain.script.trace import ThreadSetting
from onsight_explain.threads import SHORT_SPIN, SPIN_VARIABLE
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.threads import DefaultThreadSettings, ShortSpin, ThreadCount


@pytest.mark.parametrize(
    ("device", "threads", "counts"), [("cpu", 2, [1, 4]), ("cpu", 1, [4]), ("cuda:0", 2, [])]
)
def test_one_and_all_cores_are_tried_on_the_cpu(baseline, device, threads, counts):
    found = ThreadCount.candidates(baseline(device=device, threads=threads))
    assert [one.value for one in found] == counts


def test_on_a_busy_machine_what_fewer_threads_gain_shows_nothing(baseline):
    """They wait for a core that other work has."""
    busy = replace(baseline(device="cpu"), is_busy=True)
    assert not ThreadCount.candidates(busy)
    assert not ShortSpin.candidates(busy)


def test_the_script_cannot_change_it_back(apply):
    apply(threads=2)
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("threads", "variable", "count"),
    [(2, None, 1), (2, SHORT_SPIN, 1), (2, "77", 0), (1, None, 0)],
)
def test_tried_if_several_threads_compute_and_the_user_chose_nothing(
    baseline, monkeypatch, threads, variable, count
):
    if variable:
        monkeypatch.setenv(SPIN_VARIABLE, variable)
    else:
        monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    assert len(ShortSpin.candidates(baseline(threads=threads))) == count
    assert ShortSpin(True).environment == {SPIN_VARIABLE: SHORT_SPIN}


SOURCE = 'import os\nos.environ["GOMP_SPINCOUNT"] = "0"\nimport torch\n'


@pytest.fixture
def settings(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SOURCE, encoding="utf-8")
    return [
        ThreadSetting(name="GOMP_SPINCOUNT", value="0", site=Site(file=str(script), line=2)),
        ThreadSetting(name="OMP_WAIT_POLICY", value="active", site=None),
    ]


def test_tried_if_there_are_any(baseline, settings):
    assert DefaultThreadSettings.candidates(baseline()) == []
    assert DefaultThreadSettings.candidates(baseline(thread_settings=settings)) == [
        DefaultThreadSettings(True)
    ]


def test_without_them_threads_wait_as_in_the_unchanged_script_on_a_busy_machine(monkeypatch):
    monkeypatch.setenv(SPIN_VARIABLE, SHORT_SPIN)
    environment = DefaultThreadSettings(True).environment
    assert environment[SPIN_VARIABLE] == SHORT_SPIN
    assert environment["OMP_WAIT_POLICY"] == UNSET


def test_the_process_is_started_without_them_and_may_use_every_core(apply, monkeypatch):
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    environment = DefaultThreadSettings(True).environment
    assert environment["GOMP_SPINCOUNT"] == environment["OMP_PROC_BIND"] == UNSET
    before = os.sched_getaffinity(0)
    apply(thread_settings=True)
    os.sched_setaffinity(0, {min(before)})
    assert os.sched_getaffinity(0) == before


def test_cause_and_lines_name_where_they_are_set(baseline, settings):
    trace, what_if = baseline(thread_settings=settings).trace, DefaultThreadSettings(True)
    cause = what_if.cause(trace)
    assert cause.name == "threads"
    assert "GOMP_SPINCOUNT=0, at train.py:2 and OMP_WAIT_POLICY=active, in" in cause.sentence
    script = settings[0].site.file
    lines = fix_script(Path(script), what_if.fixes(trace)).lines
    assert lines[0].text.startswith("remove this line, which sets GOMP_SPINCOUNT=0")
    assert lines[1].text == "start it without OMP_WAIT_POLICY=active: unset OMP_WAIT_POLICY"
