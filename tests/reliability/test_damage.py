"""Flipped bits, cut ends and zeroed blocks: a damaged file is refused by name, never used."""

import functools
import random
import shutil
import signal

import numpy as np
import pytest
from instants import signal_at
from tally import Tally, count
from trials import resume, train

from onsight.data.fit import ImageFormat
from onsight.data.pack import open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.find import find_source
from onsight.errors import OnsightError
from onsight.models.file import load_model_file
from onsight.tensorfile import read_tensors
from onsight.training.verify_resume import compare_folders

DAMAGES = [*["flip"] * 5, "cut", "zero"]  # of 1,400: 1,000, 200 and 200


def damage(good, kind, drawn):
    """Return the bytes damaged; at least one byte changes."""
    bad = bytearray(good)
    while bad == good:
        place = drawn.randrange(len(good))
        if kind == "flip":
            bad[place] ^= 1 << drawn.randrange(8)
        elif kind == "cut":
            del bad[place:]
        else:
            end = min(len(good), place + drawn.choice([16, 512, 4096]))
            bad[place:end] = bytes(end - place)
    return bytes(bad)


def error_of(read, path):
    """Read a file; return the OnsightError it raises, or None."""
    try:
        read(path)
    except OnsightError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("checkpoints/last.safetensors", read_tensors),
        ("checkpoints/best.safetensors", read_tensors),
        ("model.safetensors", load_model_file),
    ],
)
def test_a_damaged_file_is_refused_by_name(name, read, undisturbed, tmp_path):
    tally, drawn = Tally(f"damage to {name}"), random.Random(name)
    path = tmp_path / name.rpartition("/")[2]
    good = (undisturbed / name).read_bytes()
    for number in range(count(1400, 70)):
        kind = DAMAGES[number % len(DAMAGES)]
        path.write_bytes(damage(good, kind, drawn))
        with tally.trial(f"{kind} {number}"):
            error = error_of(read, path)
            assert error is not None, "it was read"
            assert str(path) in str(error)
            assert error.exit_code == 2
    tally.end()


@pytest.mark.parametrize("name", ["pixels.bin", "table.safetensors", "pack.json"])
def test_a_damaged_pack_is_built_again(name, shared_bars, tmp_path):
    tally, drawn = Tally(f"damage to {name} of a pack"), random.Random(name)
    job = PackJob(find_source(str(shared_bars)), ImageFormat(12, 12, 1))
    pack = open_pack(job, tmp_path)
    everything = np.arange(len(pack))
    pixels, labels = pack.take(everything), pack.index.labels.copy()
    (path,) = tmp_path.rglob(name)
    good = path.read_bytes()
    for number in range(count(1400, 7)):
        path.write_bytes(damage(good, DAMAGES[number % len(DAMAGES)], drawn))
        with tally.trial(f"{number}"):
            found = open_pack(job, tmp_path)
            # Whitespace in pack.json means nothing.
            assert found.was_cached is False or name == "pack.json"
            assert found.take(everything).equal(pixels)
            assert np.array_equal(found.index.labels, labels)
    tally.end()


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    instants, undisturbed, shared_bars, tmp_path
):
    tally, drawn = Tally("damage to the last checkpoint of a killed run"), random.Random(4)
    killed = tmp_path / "killed"
    at = instants[1] // 2
    prepare = functools.partial(signal_at, signal.SIGTERM, at, True, tmp_path / "saved")
    assert train(shared_bars, killed, prepare=prepare).code == 128 + signal.SIGTERM
    last = killed / "checkpoints" / "last.safetensors"
    for number in range(count(35, 1)):
        out = shutil.copytree(killed, tmp_path / f"{number}")
        bad = damage(last.read_bytes(), DAMAGES[number % len(DAMAGES)], drawn)
        (out / "checkpoints" / "last.safetensors").write_bytes(bad)
        with tally.trial(f"{number}"):
            again = resume(shared_bars, out)
            assert again.code == 0, again.output
            text = "".join(again.output.split())
            assert f"{out}/checkpoints/last.safetensors".replace(" ", "") in text
            assert "resumingfromthecheckpointbefore" in text
            assert compare_folders(undisturbed, out).differences == []
    tally.end()
    out = shutil.copytree(killed, tmp_path / "neither")
    (out / "checkpoints" / "last.safetensors").write_bytes(b"")
    (out / "checkpoints" / "former.safetensors").write_bytes(b"")
    again = resume(shared_bars, out)
    assert again.code == 2
    assert "last.safetensors" in again.output
