"""docs/coming-from.md shows the programs of examples/coming_from as they are, and they run.

`make docs-check` runs those for Onsight and for PyTorch alone. The others are skipped where fastai
or Ultralytics is not installed; by hand, after `make .venv-bench/installed`, fastai's runs with

    .venv-bench/bin/pytest -m docs tests/docs/test_coming_from.py

and Ultralytics' in an environment that has Onsight's requirements, pytest and ultralytics.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "coming_from"
NEEDS = {
    "with_onsight": "onsight",
    "by_hand": "torchvision",
    "with_fastai": "fastai",
    "with_ultralytics": "ultralytics",
}


def test_the_page_shows_the_programs_as_they_are():
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    shown = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert sorted(shown) == sorted(path.read_text() for path in PROGRAMS.glob("*.py"))
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(NEEDS)


@pytest.mark.docs
@pytest.mark.parametrize("name", NEEDS)
def test_the_program_trains_and_names_the_class_of_an_image(name, tmp_path):
    if find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    for label, grey in (("dark", 0), ("bright", 200)):
        (tmp_path / "shades" / label).mkdir(parents=True)
        for number in range(40):
            image = Image.new("RGB", (32, 32), (grey + number,) * 3)
            image.save(tmp_path / "shades" / label / f"{number}.png")
    Image.new("RGB", (32, 32), (225, 225, 225)).save(tmp_path / "new.png")
    done = subprocess.run(
        [sys.executable, PROGRAMS / f"{name}.py", "shades", "new.png", "2"],
        cwd=tmp_path,
        # Ultralytics: no network, no settings in the user's folder.
        env=os.environ | {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert "bright" in last or "dark" in last
