"""scripts/gpu_check.py: each part by itself, with a line and a log as soon as it ends."""

import json
import runpy
import sys
import time
from pathlib import Path

import pytest

from onsight.config_files import recipe_names

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
CHECK = runpy.run_path(str(SCRIPT))
Part, Result = CHECK["Part"], CHECK["Result"]


def run_parts(tmp_path, *parts, device="cuda:0"):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    runner = CHECK["Runner"](
        {"device": device}, tmp_path, scratch, CHECK["environment_of_parts"](scratch)
    )
    return runner.run([Part(name, ("-c", code), limit) for name, code, limit in parts])


def test_parts_end_apart_from_one_another(tmp_path):
    results = run_parts(
        tmp_path,
        ("good", "print('text'); print('{\"images/s\": 3}')", 60),
        ("bad", "print('before'); raise ValueError('as planned')", 60),
        ("slow", "import time; print('begun', flush=True); time.sleep(600)", 0.5),
    )
    assert [result.status for result in results] == ["ok", "failed", "timed out"]
    assert results[0].figures == {"images/s": 3}
    assert results[1].reason == "ValueError: as planned"
    assert "not done after" in results[2].reason
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["ok", "failed", "timed out"]
    log = (tmp_path / "log.txt").read_text()
    assert all(text in log for text in ("text", "before", "begun", "===== bad: failed"))


def test_a_part_leaves_no_process_behind(tmp_path):
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {!r}]).pid)"
    sleeper = "import time; time.sleep(600)"
    (result,) = run_parts(tmp_path, ("parent", code.format(sleeper), 60))
    assert result.status == "ok"
    child = int((tmp_path / "log.txt").read_text().split()[-1])
    end = time.monotonic() + 30
    while is_running(child):  # a killed process may take a moment to end
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_part_for_which_no_time_is_left_is_no_success(tmp_path, monkeypatch):
    runner = CHECK["Runner"]({"device": "cuda:0"}, tmp_path, tmp_path, {})
    runner.deadline = 0.0
    (result,) = runner.run([Part("late", ("-c", "pass"), 60)])
    assert result.is_failure


def test_the_table_has_every_part(tmp_path):
    results = [
        Result("tests", "ok", 12.3, {"tests": "20 passed, 2 skipped"}),
        Result("memory", "failed", 3.0, reason="no | memory"),
    ]
    table = CHECK["markdown"]({"device": "cuda:0", "torch": "2.11.0"}, results)
    assert table.splitlines()[0] == "device cuda:0, torch 2.11.0"
    assert table.splitlines()[-2:] == [
        "| tests | ok | 12 | tests 20 passed, 2 skipped |",
        "| memory | failed: no / memory | 3 |  |",
    ]


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        ("pytest>=8.3", True),
        ("pytest>=8.3,<9999", True),
        ("pytest>=9999", False),
        ("pytest<2", False),
        ("no-such-package>=1", False),
    ],
)
def test_requirements_are_met_by_what_is_installed(requirement, is_met):
    assert CHECK["is_met"](requirement) == is_met


def test_nothing_is_missing_here_and_pytest_counts_are_figures():
    assert CHECK["missing_requirements"]() == []
    assert CHECK["numbers_of"]("2.11.0+cu130") == (2, 11, 0)
    lines = ["....", "SKIPPED [1] x.py:3: why", "20 passed, 2 skipped in 3.21s"]
    assert CHECK["figures_in"](lines) == {"tests": "20 passed, 2 skipped"}


def test_a_failed_test_is_the_reason(tmp_path):
    code = "print('FAILED a.py::test_b - why'); print('1 failed in 2.00s'); raise SystemExit(1)"
    (result,) = run_parts(tmp_path, ("tests", code, 60))
    assert result.reason == "FAILED a.py::test_b - why"
    assert result.figures == {"tests": "1 failed"}


def test_what_is_missing_is_told_before_anything_runs(tmp_path, monkeypatch, capsys):
    main = CHECK["main"]
    monkeypatch.setitem(main.__globals__, "requirements", lambda: ["no-such-package>=1"])
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "out")])
    assert main() == 2
    assert "lacks no-such-package>=1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_recipe_is_a_part():
    assert set(CHECK["RECIPES"]) == set(recipe_names())
    names = [part.name for part in CHECK["make_parts"]("simulated:1", True)]
    assert len(names) == len(set(names))
