"""Runs tests/twin, each file in a process of its own: the twin registers itself for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "twin"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("check_*.py")))
def test_on_the_twin(name):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-o", "python_files=check_*.py", str(FOLDER / name)),
        ],
        cwd=FOLDER.parents[1],
        # One thread: its tensors are small, and another such process runs beside it.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
