"""What `soak/test_planted_bugs.py` takes away is still there to be taken away."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_guard_occurs_once_and_its_tests_exist():
    sources = [ROOT / "src", *ROOT.glob("packages/*/src")]
    for bug in runpy.run_path(str(ROOT / "soak" / "planted_bugs.py"))["BUGS"]:
        (file,) = (source / bug.file for source in sources if (source / bug.file).exists())
        assert file.read_text().count(bug.guard) == 1, bug
        files = [word for word in bug.tests.split() if "/" in word]
        assert all((ROOT / file).exists() for file in files), bug
