"""The planted scripts, fixed by the what-ifs that win there: the lines, and the same losses."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

PLANTED = Path(__file__).parents[4] / "benchmarks" / "planted"
STEPS = 4


class Done(Exception):
    """Enough steps were seen."""


@pytest.fixture
def losses(monkeypatch, tmp_path):
    """A function that runs a script for some steps and returns its losses."""

    def run(script, data):
        found = []
        original = torch.autograd.backward

        def backward(loss, *args, **kwargs):
            found.append(float(loss.detach()))
            if len(found) == STEPS:
                raise Done
            original(loss, *args, **kwargs)

        with monkeypatch.context() as patches:
            patches.setattr(torch.autograd, "backward", backward)
            patches.setattr(sys, "argv", [script.name, str(data)])
            torch.manual_seed(0)
            with pytest.raises(Done):
                runpy.run_path(str(script), run_name="__main__")
        return found

    return run


@pytest.fixture
def data(tmp_path):
    """A function that makes the few images that a script needs: files, raw colours, arrays."""

    def make(kind):
        numbers = np.random.default_rng(0)
        for at in range(16):
            folder = tmp_path / "data" / f"class{at % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = numbers.integers(0, 256, (128, 128, 3), np.uint8)
            if kind == "raw":
                np.save(folder / f"{at}.npy", pixels)
            elif kind == "images":
                Image.fromarray(pixels).save(folder / f"{at}.png")
        shape = (3, 96, 96) if kind == "colour" else (1, 28, 28)
        for part in ("train", "val"):
            images = numbers.integers(0, 256, (600, *shape), np.uint8)
            np.save(tmp_path / "data" / f"{part}-images.npy", images)
            np.save(tmp_path / "data" / f"{part}-labels.npy", numbers.integers(0, 10, 600))
        rows = numbers.integers(0, 10, (64, 3073), np.uint8)
        rows.tofile(tmp_path / "data" / "data_batch_1.bin")
        return tmp_path / "data"

    return make


KEPT = {"cache": "items"}
LOADER = "train_loader = DataLoader("
# the data it needs, the what-ifs that win there, and the lines that are new outside of definitions
CASES = {
    "loader_bound": (
        "images",
        {"cache": "fixed"},
        [
            LOADER,
            "CachedTransforms(train_set, fixed=1),",
            "batch_size=args.batch_size,",
            "shuffle=True,",
            "num_workers=0,",
        ],
    ),
    "disk_bound": (
        "raw",
        KEPT,
        [
            LOADER,
            "CachedBatches(train_set),",
            "batch_size=args.batch_size,",
            "shuffle=True,",
            "collate_fn=list,",
            "num_workers=0,",
        ],
    ),
    "slow_transform": (
        "images",
        KEPT,
        [
            LOADER,
            "CachedBatches(train_set),",
            "batch_size=args.batch_size,",
            "shuffle=True,",
            "collate_fn=list,",
            "num_workers=0,",
        ],
    ),
    "sync_in_loop": (
        "grey",
        {"rare_reads": (64,)},
        ["# confidence, correct: of every 50th step only", "if step % 50 == 1:"],
    ),
    "oversubscribed": (
        "grey",
        {"workers": 0},
        ["train_set, batch_size=args.batch_size, shuffle=True, num_workers=0"],
    ),
    "eval_with_grad": ("grey", {"no_grad": True}, ["with torch.no_grad():"]),
    "fp32_bound": (
        "colour",
        {"channels_last": True, "bf16": True},
        [
            "model.to(memory_format=torch.channels_last)",
            "images = images.to(memory_format=torch.channels_last)",
            "with torch.autocast(images.device.type, dtype=torch.bfloat16):",
        ],
    ),
    "pageable_copies": (
        "grey",
        {"pin_memory": True},
        [
            "train_loader = DataLoader(train_set, batch_size=None, shuffle=True, pin_memory=True)",
            "images, labels = (",
            "images.to(device, non_blocking=True),",
            "labels.to(device, non_blocking=True),",
        ],
    ),
    "tiny_batch": (
        "grey",
        {"batch_factor": 32},
        [f'{LOADER}load(args.data, "train"), batch_size=128, shuffle=True)'],
    ),
    "tutorial_lenet": (
        "rows",
        {**KEPT, "batch_factor": 64, "threads": 1},
        [
            "torch.set_num_threads(1)",
            "trainloader = DataLoader(",
            "CachedBatches(trainset), batch_size=256, shuffle=True, num_workers=0, collate_fn=list",
        ],
    ),
}


@pytest.fixture
def fix_planted(script, traced):
    """A function that fixes a planted script."""

    def fix(name, changes):
        written = script((PLANTED / f"{name}.py").read_bytes())
        network = "net" if name == "tutorial_lenet" else "model"
        trace = traced(
            loader=written.call("DataLoader"),
            forward=written.call(network),
            graphs=written.call("model", 1) if name == "eval_with_grad" else None,
            reads=written.call("probabilities.argmax") if name == "sync_in_loop" else None,
        )
        return written.fix(trace, **changes)

    return fix


@pytest.mark.parametrize("name", CASES)
def test_the_changed_lines(fix_planted, name):
    _, changes, expected = CASES[name]
    found = fix_planted(name, changes)
    before, after = (
        [row.strip() for row in raw.decode().splitlines()] for raw in (found.before, found.after)
    )
    new = [row for row in after if row not in before and row not in _of_definitions(after)]
    assert new == ["# Fixed by Onsight from train.py.", *expected]
    assert not any(one.left for one in found.lines)


SAME = {"loader_bound", "disk_bound", "slow_transform", "sync_in_loop", "eval_with_grad"}


@pytest.mark.parametrize("name", sorted(SAME))
def test_the_fixed_script_has_the_same_losses(fix_planted, losses, data, name, tmp_path):
    kind, changes, _ = CASES[name]
    found, images = fix_planted(name, changes), data(kind)
    path = tmp_path / "mended.py"
    path.write_bytes(found.after)
    assert losses(path, images) == losses(PLANTED / f"{name}.py", images)


def test_the_fixed_vgg_has_nearly_the_same_losses(fix_planted, losses, data, tmp_path):
    kind, changes, _ = CASES["fp32_bound"]
    path = tmp_path / "mended.py"
    path.write_bytes(fix_planted("fp32_bound", changes).after)
    images = data(kind)
    plain = losses(PLANTED / "fp32_bound.py", images)
    assert losses(path, images) == pytest.approx(plain, rel=0.02)


def _of_definitions(rows):
    """The rows from a new class to the next two empty lines."""
    found = set()
    for at, row in enumerate(rows):
        if row in ("class CachedBatches:", "class CachedTransforms:"):
            end = next(i for i in range(at, len(rows)) if not any(rows[i : i + 2]))
            found.update(rows[at:end])
    return found
