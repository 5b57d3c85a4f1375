"""Oracle: torchvision's MNIST reading the same files."""

import gzip
import os
import struct

import numpy as np
import pytest
from torchvision import datasets

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.idx import contains_idx, read_idx
from onsight.errors import DataError

RNG = np.random.default_rng(0)


def images_file(pixels):
    return struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes()


def labels_file(labels):
    return struct.pack(">2I", 0x801, len(labels)) + bytes(labels)


def plant(folder, prefix="train", count=30, shape=(28, 28), gz=False, images=None, labels=None):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (count, *shape), np.uint8)
    contents = {
        f"{prefix}-images-idx3-ubyte": images or images_file(pixels),
        f"{prefix}-labels-idx1-ubyte": labels or labels_file([n % 10 for n in range(count)]),
    }
    for name, data in contents.items():
        file = folder / f"{name}.gz" if gz else folder / name
        file.write_bytes(gzip.compress(data) if gz else data)
    return pixels


def test_every_pixel_and_label_equals_torchvision(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    plant(raw, "train", 40)
    plant(raw, "t10k", 15)
    source = read_idx(raw)
    row = 0
    for split, name, train in ((TRAIN, "train", True), (TEST, "test", False)):
        oracle = datasets.MNIST(tmp_path, train=train)
        for number, (image, label) in enumerate(oracle):
            pixels = source.read(row)
            assert pixels.shape == (28, 28, 1)
            assert np.array_equal(pixels[:, :, 0], np.asarray(image))
            assert source.index.classes[source.index.labels[row]] == str(label)
            assert source.index.locators[row] == f"{name}/{number:05d}"
            assert source.index.splits[row] == split
            row += 1
    assert row == len(source.index) == 55
    assert source.description == ("IDX files with train/test, 10 classes, 55 images")


def test_gzipped_files_and_odd_sizes(tmp_path):
    pixels = plant(tmp_path, shape=(5, 9), gz=True)
    source = read_idx(tmp_path)
    assert np.array_equal(np.stack([source.read(row) for row in range(30)])[..., 0], pixels)


def test_unpacked_file_beside_its_gzipped_copy_is_read_once(tmp_path):
    plant(tmp_path, gz=True)
    pixels = plant(tmp_path)
    source = read_idx(tmp_path)
    assert len(source.index) == 30
    assert np.array_equal(source.read(7)[..., 0], pixels[7])


@pytest.mark.parametrize(
    ("prefix", "split"),
    [("emnist-letters-train", "train"), ("emnist-letters-test", "test"), ("pets", "unsplit")],
)
def test_other_prefixes(tmp_path, prefix, split):
    plant(tmp_path, prefix)
    assert contains_idx(tmp_path)
    assert read_idx(tmp_path).index.locators[0] == f"{split}/00000"


def test_names_with_a_dot(tmp_path):
    plant(tmp_path)
    for what in ("images-idx3", "labels-idx1"):
        file = tmp_path / f"train-{what}-ubyte"
        file.rename(tmp_path / f"train-{what.replace('-', '.')}-ubyte")
    assert len(read_idx(tmp_path).index) == 30


def test_several_sets_in_a_folder_are_refused(tmp_path):
    plant(tmp_path, "emnist-letters-train")
    plant(tmp_path, "emnist-digits-train")
    with pytest.raises(DataError, match="holds several datasets: .*digits.* and .*letters"):
        read_idx(tmp_path)


GOOD = images_file(np.zeros((4, 3, 2), np.uint8))


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (GOOD[:-1], None, r"shorter than its header says \(\(4, 3, 2\)\)"),
        (GOOD + b"x", None, "longer than its header says"),
        (GOOD[:10], None, "is not an IDX file"),
        (b"\0\0\x0d\3" + GOOD[4:], None, "it starts with 00 00 0d 03"),
        (b"<html>", None, "it starts with 3c 68 74 6d"),
        (struct.pack(">4I", 0x803, *[2**32 - 1] * 3), None, "shorter than|suspiciously compressed"),
        (struct.pack(">4I", 0x803, 4, 0, 2), None, "images of 0x2 pixels"),
        (GOOD, labels_file([1, 2, 3]), "has 4 images, but .* 3 labels"),
        (GOOD, GOOD, "train-labels-idx1-ubyte.* is not an IDX file"),
    ],
)
def test_damaged_files_are_errors(tmp_path, gz, images, labels, message):
    plant(tmp_path, count=4, gz=gz, images=images, labels=labels)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    plant(tmp_path)
    zeros = gzip.compress(bytes(2**20))
    header = gzip.compress(struct.pack(">4I", 0x803, 2000, 2**10, 2**10))
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(header + 2000 * zeros)
    with pytest.raises(DataError, match=r"suspiciously compressed.*\(2000, 1024, 1024\)"):
        read_idx(tmp_path)


def test_a_fifo_is_not_waited_for(tmp_path):
    plant(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    os.mkfifo(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(DataError, match="not a regular file"):
        read_idx(tmp_path)


def test_truncated_gzip(tmp_path):
    plant(tmp_path, gz=True)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="damaged or truncated"):
        read_idx(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match="has no file such as train-images-idx3-ubyte"):
        read_idx(tmp_path)
    plant(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\[\.gz\] is missing"):
        read_idx(tmp_path)


def test_no_images_at_all(tmp_path):
    plant(tmp_path, count=0, labels=labels_file([]))
    with pytest.raises(DataError, match="hold no image"):
        read_idx(tmp_path)
