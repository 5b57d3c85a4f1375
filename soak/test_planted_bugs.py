"""Each guard is taken away in turn; a test must notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planted_bugs import BUGS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.file}: {bug.guard}" for bug in BUGS])
def test_a_planted_bug_makes_a_test_fail(bug, tmp_path):
    planted = shutil.copytree(SOURCE, tmp_path / "src")
    file = planted / "onsight" / bug.file
    text = file.read_text()
    assert text.count(bug.guard) == 1
    file.write_text(text.replace(bug.guard, bug.instead))
    plain = ["-x", "--timeout", "60", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, *bug.tests.split()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(planted), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    noticed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print("\n".join(noticed))


def test_there_are_sixty_guards():
    assert len(BUGS) >= 60
