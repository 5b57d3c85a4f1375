"""The long tests of tests/simulated, in another process: each setting by itself."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_long_tests_on_the_simulated_device() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-o", "python_files=check_*.py", "-m", "soak", "tests/simulated"],
        cwd=ROOT,
        env={**inherited, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    print(done.stdout.splitlines()[-1])
