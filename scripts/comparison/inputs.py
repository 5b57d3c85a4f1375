"""Make the inputs of all scenarios: the same bytes each time, for both trees."""

import csv
import gzip
import json
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

ROOT = Path(__file__).parents[2]
PLANTED_SCRIPTS = ROOT / "packages" / "onsight-lint" / "tests" / "planted"
IMAGES_PER_CLASS, SIDE = 60, 16
# Where the time of planted training scripts goes, and how many times as fast changes make them:
# every other one changes nothing. `as_mended`, now `fixed_script`, is the fixed text as a whole.
TIMINGS: dict[str, dict[str, object]] = {
    "sync_in_loop": {
        "phases": {"data": 0.05, "forward": 0.1, "backward": 0.1, "optimizer": 0.05, "sync": 0.6}
        | {"other": 0.1},
        "speedups": {
            "rare_reads": 3.0,
            "batch_factor": 1.5,
            "fused": 1.2,
            "as_mended": 4.0,
            "fixed_script": 4.0,
        },
    },
    "eval_with_grad": {
        "phases": {"data": 0.05, "forward": 0.1, "backward": 0.1, "optimizer": 0.05}
        | {"evaluation": 0.6, "other": 0.1},
        "speedups": {
            "no_grad": 2.0,
            "evaluation_batch": 1.4,
            "threads": 0.5,
            "as_mended": 2.5,
            "fixed_script": 2.5,
        },
    },
    "slow_transform": {
        "phases": {
            "data": 0.8,
            "forward": 0.05,
            "backward": 0.05,
            "optimizer": 0.05,
            "other": 0.05,
        },
        "item_seconds": 0.001,
        "speedups": {"cache": 6.0, "workers": 1.5, "as_mended": 7.0, "fixed_script": 7.0},
    },
}


def make_inputs(folder: Path) -> None:
    """Fill an empty folder."""
    _make_bars(folder / "bars")
    paths = sorted(folder.glob("bars/*/*.png"))
    with zipfile.ZipFile(folder / "bars.zip", "w") as archive:
        for path in paths:
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes())
    with tarfile.open(folder / "bars.tar", "w") as tar:
        for path in paths:
            tar.add(path, str(path.relative_to(folder)))
    rows = [(str(path.relative_to(folder)), path.parent.name) for path in paths]
    with open(folder / "bars.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    columns = {"image": [{"bytes": path.read_bytes(), "path": path.name} for path in paths]}
    table = pyarrow.table(columns | {"label": [label for _, label in rows]})
    pyarrow.parquet.write_table(table, folder / "bars.parquet")
    _make_idx(folder / "idx")
    _make_odd_files(folder / "odd")
    shutil.copytree(folder / "bars", folder / "messy")
    shutil.copytree(folder / "odd", folder / "messy" / "down", dirs_exist_ok=True)
    shutil.copy(paths[0], folder / "messy" / "down" / "copy.png")
    (folder / "broken.zip").write_bytes(b"PK\x03\x04 and nothing else")
    shutil.copytree(PLANTED_SCRIPTS, folder / "scripts", dirs_exist_ok=True)
    _copy_torch_files(folder / "torch-files")
    _make_training_scripts(folder / "training")


def _make_bars(folder: Path) -> None:
    generator = np.random.default_rng(1)
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True)
        for number in range(IMAGES_PER_CLASS):
            pixels = generator.integers(0, 80, (SIDE, SIDE), np.uint8)
            place = int(generator.integers(2, SIDE - 2))
            pixels[(place, slice(None)) if name == "across" else (slice(None), place)] = 255
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")


def _make_idx(folder: Path) -> None:
    folder.mkdir()
    generator = np.random.default_rng(2)
    for part, count in (("train", 200), ("t10k", 60)):
        labels = (np.arange(count) % 3).astype(np.uint8)
        images = generator.integers(0, 100, (count, 28, 28), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[8 * label : 8 * label + 8] += 100
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            path = folder / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + values.tobytes(), mtime=0))


def _make_odd_files(folder: Path) -> None:
    folder.mkdir()
    generator = np.random.default_rng(3)
    grey = Image.fromarray(generator.integers(0, 256, (20, 30), np.uint8))
    colour = Image.fromarray(generator.integers(0, 256, (20, 30, 3), np.uint8))
    for mode in ("P", "RGBA", "LA", "1"):
        colour.convert(mode).save(folder / f"mode-{mode}.png")
    colour.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(generator.integers(0, 65536, (20, 30), np.uint16)).save(folder / "deep.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation
    colour.save(folder / "turned.jpg", exif=turned)
    grey.save(folder / "moving.gif", save_all=True, append_images=[grey.rotate(90)])
    grey.resize((1, 1)).save(folder / "tiny.png")
    grey.save(folder / "whole.png")
    (folder / "cut.png").write_bytes((folder / "whole.png").read_bytes()[:200])
    (folder / "text.jpg").write_text("no image")


def _copy_torch_files(folder: Path) -> None:
    root = Path(torch.__file__).parent
    folder.mkdir()
    paths = [*sorted(root.glob("utils/**/*.py")), *sorted(root.glob("optim/*.py"))]
    for number, path in enumerate(paths[:200]):
        shutil.copy(path, folder / f"{number:03d}_{path.name}")


def _make_training_scripts(folder: Path) -> None:
    """Write scripts with planted faults, their saved timings, and their data."""
    for name, timings in TIMINGS.items():
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / "benchmarks" / "planted" / f"{name}.py", folder)
        text = json.dumps({"step_seconds": 0.01, **timings})
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    generator = np.random.default_rng(4)
    (folder / "arrays").mkdir()
    for part, count in (("train", 256), ("val", 64)):
        images = generator.integers(0, 256, (count, 1, 28, 28), np.uint8)
        np.save(folder / "arrays" / f"{part}-images.npy", images)
        np.save(folder / "arrays" / f"{part}-labels.npy", np.arange(count) % 10)
    for name in ("across", "down"):
        (folder / "folders" / name).mkdir(parents=True)
        for number in range(32):
            pixels = generator.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "folders" / name / f"{number:02d}.png")
