"""Runs tests/twin in a process of its own: the simulated device registers itself for good."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

FOLDER = Path(__file__).parents[1] / "twin"


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
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
