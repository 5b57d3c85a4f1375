"""What a run needs on a laptop: at most 2.5 GB, whatever it trains."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

LIMIT_BYTES = 2.5e9
MEASURED_PROCESS = Path(__file__).parents[1] / "benchmarks" / "measured_process.py"
TIME_LIMIT_SECONDS = 3000


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7,000 pictures of 400 pixels a side in 16 classes: squares on a class's color."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for label in range(16):
        (folder / f"class {label:02d}").mkdir()
    for number in range(7_000):
        label = number % 16
        pixels = np.full((400, 400, 3), (16 * label, 255 - 16 * label, 128), np.uint8)
        top, left = random.integers(0, 300, 2)
        pixels[top : top + 100, left : left + 100] = random.integers(0, 255, 3)
        path = folder / f"class {label:02d}" / f"{number:04d}.jpg"
        Image.fromarray(pixels).save(path, quality=80)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--budget", "4m", "--model", "tf_efficientnet_lite0", "--pretrained"],
        ["--model", "compact", "--image-size", "224", "--epochs", "1"],
    ],
    ids=["default", "fine-tuned", "compact, 224 pixels"],
)
def test_a_run_needs_at_most_two_and_a_half_gigabytes(
    photos: Path, tmp_path: Path, options: list[str]
) -> None:
    words = [str(MEASURED_PROCESS), str(TIME_LIMIT_SECONDS)]
    words += [str(tmp_path / name) for name in ("stdout", "stderr")]
    words += [sys.executable, "-m", "onsight", "train", str(photos), *options]
    words += ["--out", str(tmp_path / "run"), "--cache-folder", str(tmp_path / "cache")]
    measured = subprocess.run([sys.executable, *words], capture_output=True, check=True, text=True)
    facts = json.loads(measured.stdout)
    assert facts["code"] == 0, (tmp_path / "stderr").read_text()
    print(f"{options}: {facts['peak_bytes'] / 1e9:.2f} GB in {facts['seconds']:.0f} s")
    assert facts["peak_bytes"] <= LIMIT_BYTES
