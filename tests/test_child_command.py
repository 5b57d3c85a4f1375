"""Processes of Onsight's own import nothing from the working directory, whoever wrote it."""

import json
import subprocess
import sys
from pathlib import Path

from onsight.training import verify_resume as killed
from onsight_explain.python_process import child_command

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "src", *ROOT.glob("packages/*/src")]


def test_one_function_makes_every_command():
    starting = ("sys.executable", '"-m"', 'get_context("spawn', 'get_context("forkserver')
    found = {
        path.relative_to(source).as_posix(): word
        for source in SOURCES
        for path in source.rglob("*.py")
        for word in starting
        if word in path.read_text(encoding="utf-8")
    }
    assert set(found) == {"onsight_explain/python_process.py"}, found


def test_what_a_child_starts_is_started_as_usual(tmp_path, monkeypatch):
    """A script beside its own module, in an environment that says nothing of safe paths."""
    (tmp_path / "neighbour.py").write_text("here = True\n")
    (tmp_path / "helper.py").write_text(
        "import json, os, neighbour\n"
        "print(json.dumps([neighbour.here, 'PYTHONSAFEPATH' in os.environ]))\n"
    )
    (tmp_path / "starter.py").write_text(
        "import subprocess, sys\n"
        "print(sys.flags.safe_path, flush=True)\n"
        "subprocess.run([sys.executable, 'helper.py'], check=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    said = subprocess.check_output(child_command("starter"), cwd=tmp_path, text=True)
    assert said.splitlines()[0] == "True"
    assert json.loads(said.splitlines()[1]) == [True, False]


def test_the_runs_that_verify_resume_starts(hostile_folder):
    with open(hostile_folder / "said", "wb") as said:
        assert killed._start(["--help"], said).wait(60) == 0


def test_planted_modules_would_be_imported(hostile_folder):
    """As the oracle of all tests with this folder: without -P they are."""
    subprocess.run([sys.executable, "-m", "onsight", "--version"], capture_output=True, check=False)
    planted = hostile_folder / "imported"
    assert "typing" in planted.read_text()
    planted.unlink()
