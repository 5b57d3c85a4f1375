"""100,000 mutated images: no crash, none takes a second, little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 17_000  # of each format


@pytest.mark.parametrize("form", ["png", "jpeg", "tiff", "webp", "gif", "bmp"])
def test_mutants_are_decoded_or_refused(form: str) -> None:
    script = Path(__file__).parent / "decode_mutants.py"
    done = subprocess.run(
        [sys.executable, script, form, str(COUNT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(form, found)
    assert 0 < found["used"] < COUNT
    assert found["slowest_seconds"] < 1
    assert found["grown_megabytes"] < 400  # in addition to about 565 MB for torch
