"""Runs tests/simulated in a process of its own: the simulated device registers itself for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onsight_explain.devices import can_register_python_device

FOLDER = Path(__file__).parents[1] / "simulated"


@pytest.mark.skipif(
    not can_register_python_device(),
    reason="this torch cannot register a device that is written in Python",
)
def test_on_the_simulated_device():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-o", "python_files=check_*.py", str(FOLDER)),
        ],
        cwd=FOLDER.parents[1],
        # One thread: its tensors are small, and other tests run beside it.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
