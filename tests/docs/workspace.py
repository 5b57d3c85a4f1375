"""The folder that every page runs in: `clothes/`, `new/` and a finished run, `runs/clothes/`.

python tests/docs/workspace.py FOLDER     # makes one to try a page's commands in
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

DEMO = Path(__file__).parents[2] / "src/onsight/demo/fashion-mnist-sample.zip"
PER_CLASS = 60
TRAINING = "onsight train clothes --model sprint --epochs 10"


def make_images(folder: Path) -> None:
    """Write `clothes/`, 60 labelled images of each class, and `new/`, 20 without labels."""
    counts: dict[tuple[str, str], int] = {}
    with zipfile.ZipFile(DEMO) as archive:
        for name in archive.namelist():
            if not name.endswith(".png"):
                continue
            split, label, _ = name.split("/")[-3:]
            number = counts[split, label] = counts.get((split, label), 0) + 1
            if split == "train" and number <= PER_CLASS:
                path = folder / "clothes" / label.capitalize() / f"{number:02d}.png"
            elif split == "test" and number <= 2:
                path = folder / "new" / f"{len([*folder.glob('new/*')]) + 1:02d}.png"
            else:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def make_workspace(folder: Path, environment: dict[str, str]) -> None:
    """Write the images, and train on them."""
    make_images(folder)
    done = subprocess.run(
        ["bash", "-c", TRAINING],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"`{TRAINING}` failed:\n{done.stdout}")


if __name__ == "__main__":
    make_workspace(Path(sys.argv[1]), {**os.environ})
