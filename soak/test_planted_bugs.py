"""Remove each guard in turn; a test must fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planted_bugs import BUGS, Bug

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "src", *ROOT.glob("packages/*/src")]
OPTIONS = ["-x", "--timeout", "60", "-p", "no:cacheprovider", "-p", "no:xdist"]


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.file}: {bug.guard}" for bug in BUGS])
def test_a_planted_bug_makes_a_test_fail(bug: Bug, tmp_path: Path) -> None:
    planted, ignore = tmp_path / "src", shutil.ignore_patterns("__pycache__")
    for source in SOURCES:
        shutil.copytree(source, planted, ignore=ignore, dirs_exist_ok=True)
    file = planted / bug.file
    text = file.read_text()
    assert text.count(bug.guard) == 1
    file.write_text(text.replace(bug.guard, bug.replacement))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *bug.tests.split()],
        cwd=ROOT,
        env=_inherited() | {"PYTHONPATH": str(planted), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-2000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print("\n".join(failed))


def test_there_are_sixty_guards() -> None:
    assert len(BUGS) >= 60


def _inherited() -> dict[str, str]:
    """Return the environment without the variables that this run of pytest has set."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_") and name != "RELIABILITY"
    }
