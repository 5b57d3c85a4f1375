"""Oracle: torchvision's CIFAR10 and CIFAR100 reading the same files; a canary in a pickle."""

import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.cifar import contains_cifar, read_cifar
from onsight.data.sources.restricted_unpickler import RefusedPickle, load_plain
from onsight.errors import DataError

RNG = np.random.default_rng(0)
NAMES10 = [f"kind {number}" for number in range(10)]
NAMES100 = [f"fine {number}" for number in range(100)]


def pixels_of(count):
    return RNG.integers(0, 256, (count, 3072), np.uint8)


def without_checksums(kind):
    """torchvision's reader, which only knows the checksums of the real files."""
    fields = {
        "train_list": [[name, None] for name, _ in kind.train_list],
        "test_list": [[name, None] for name, _ in kind.test_list],
        "meta": {**kind.meta, "md5": None},
    }
    return type(kind.__name__, (kind,), fields)


PlantedCifar10 = without_checksums(datasets.CIFAR10)
PlantedCifar100 = without_checksums(datasets.CIFAR100)


def plant10(root, protocol=2):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        batch = {"data": pixels_of(7), "labels": RNG.integers(0, 10, 7).tolist(),
                 "filenames": ["x.png"] * 7, "batch_label": name}  # fmt: skip
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": NAMES10}, protocol))
    return folder


def plant100(root, protocol=2):
    folder = root / "cifar-100-python"
    folder.mkdir()
    for name, count in (("train", 40), ("test", 20)):
        batch = {"data": pixels_of(count), "fine_labels": RNG.integers(0, 100, count).tolist(),
                 "coarse_labels": RNG.integers(0, 20, count).tolist()}  # fmt: skip
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    meta = {"fine_label_names": NAMES100, "coarse_label_names": ["coarse"] * 20}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol))
    return folder


def assert_equals_torchvision(source, make_oracle):
    row = 0
    for split, name in ((TRAIN, "train"), (TEST, "test")):
        oracle = make_oracle(train=split == TRAIN)
        for number, (image, label) in enumerate(oracle):
            assert np.array_equal(source.read(row), np.asarray(image))
            assert source.index.classes[source.index.labels[row]] == oracle.classes[label]
            assert source.index.locators[row] == f"{name}/{number:05d}"
            assert source.index.splits[row] == split
            row += 1
    assert row == len(source.index)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_cifar10_equals_torchvision(tmp_path, protocol):
    folder = plant10(tmp_path, protocol)
    source = read_cifar(folder)
    assert_equals_torchvision(source, lambda train: PlantedCifar10(tmp_path, train))
    assert len(source.index) == 42
    assert "CIFAR-10 with train/test" in source.description


def test_cifar100_equals_torchvision_and_uses_fine_labels(tmp_path):
    source = read_cifar(plant100(tmp_path))
    assert_equals_torchvision(source, lambda train: PlantedCifar100(tmp_path, train))


@pytest.mark.parametrize("plant", [plant10, plant100])
def test_usual_subfolder_is_searched(tmp_path, plant):
    folder = plant(tmp_path)
    assert contains_cifar(tmp_path)
    assert contains_cifar(folder)
    assert read_cifar(tmp_path).fingerprint == read_cifar(folder).fingerprint


def python2_pickle(pixels, labels):
    """A batch byte for byte as Python 2's cPickle wrote the real ones."""
    rows = len(pixels)
    return b"".join([
        b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03",
        b"U\x06labelsq\x04]q\x05(",
        *(b"K" + bytes([label]) for label in labels),
        b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08"
        b"K\x00\x85U\x01b\x87Rq\x09(K\x01K" + bytes([rows]) + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T",
        pixels.size.to_bytes(4, "little"), pixels.tobytes(),
        b"tbU\x09filenamesq\x0c]q\x0dU\x05a.pngq\x0eau.",
    ])  # fmt: skip


def test_batches_of_python_2(tmp_path):
    pixels, labels = pixels_of(3), [4, 0, 9]
    data = python2_pickle(pixels, labels)
    assert np.array_equal(pickle.loads(data, encoding="bytes")[b"data"], pixels)  # numpy agrees
    batch = load_plain(data)
    assert np.array_equal(batch["data"].values(), pixels)
    assert batch["labels"] == labels
    assert batch["batch_label"] == b"training batch 1 of 5"


def plant_binary(folder, version):
    """Records as the authors' page describes them, and the expected images."""
    folder.mkdir(exist_ok=True)
    if version == 10:
        names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
        (folder / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n\n")
    else:
        names = ["train.bin", "test.bin"]
        (folder / "fine_label_names.txt").write_text("\n".join(NAMES100) + "\n")
    expected = []
    for name in names:
        records = b""
        for _ in range(5):
            planes, label = RNG.integers(0, 256, (3, 32, 32), np.uint8), int(RNG.integers(version))
            coarse = b"" if version == 10 else bytes([19])
            records += coarse + bytes([label]) + planes.tobytes()
            pixels = np.stack([planes[0], planes[1], planes[2]], axis=2)
            expected.append((pixels, NAMES10[label] if version == 10 else NAMES100[label]))
        (folder / name).write_bytes(records)
    return expected


@pytest.mark.parametrize(
    ("version", "subfolder"), [(10, "cifar-10-batches-bin"), (100, "cifar-100-binary")]
)
def test_binary_version(tmp_path, version, subfolder):
    expected = plant_binary(tmp_path / subfolder, version)
    source = read_cifar(tmp_path)
    assert len(source.index) == len(expected)
    for row, (pixels, name) in enumerate(expected):
        assert np.array_equal(source.read(row), pixels)
        assert source.index.classes[source.index.labels[row]] == name
    assert source.index.splits.tolist() == [TRAIN] * (len(expected) - 5) + [TEST] * 5


@pytest.mark.parametrize("version", [10, 100])
def test_without_names_labels_are_their_own_names(tmp_path, version):
    plant_binary(tmp_path, version)
    for file in tmp_path.glob("*.txt"):
        file.unlink()
    assert all(name.isdigit() for name in read_cifar(tmp_path).index.classes)


def test_missing_batch_is_named(tmp_path):
    folder = plant10(tmp_path)
    (folder / "data_batch_1").unlink()
    with pytest.raises(DataError, match="data_batch_1 is missing"):
        read_cifar(tmp_path)


def test_no_cifar_at_all(tmp_path):
    (tmp_path / "train").touch()  # without a meta file this may be anything
    assert not contains_cifar(tmp_path)
    with pytest.raises(DataError, match="holds no CIFAR files"):
        read_cifar(tmp_path)


def test_damaged_binary_batch(tmp_path):
    plant_binary(tmp_path, 10)
    file = tmp_path / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged: 15,364 bytes"):
        read_cifar(tmp_path)


@pytest.mark.parametrize("label", [-1, 10])
def test_label_without_a_name(tmp_path, label):
    folder = plant10(tmp_path)
    batch = {"data": pixels_of(1), "labels": [label]}
    (folder / "data_batch_5").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(DataError, match=f"label {label}, but only 10 names"):
        read_cifar(folder)


class Canary:
    """Writes a file when pickle itself loads it."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["data_batch_2", "batches.meta"])
def test_canary_in_a_pickle_does_not_run(tmp_path, protocol, place):
    folder = plant10(tmp_path)
    song = tmp_path / "song"
    evil = pickle.dumps({"data": Canary(song), "label_names": Canary(song)}, protocol)
    pickle.loads(evil)
    assert song.exists()  # the canary sings
    song.unlink()
    (folder / place).write_bytes(evil)
    with pytest.raises(DataError, match=rf"{place} is not a CIFAR file.*: it imports"):
        read_cifar(folder)
    assert not song.exists()


# A text in the memo, made into new bytes over and over again.
AMPLIFYING = (
    b"\x80\x02c_codecs\nencode\nq\x00X\xe8\x03\x00\x00" + b"x" * 1000 + b"q\x01"
    b"X\x06\x00\x00\x00latin1q\x02" + b"h\x00h\x01h\x02\x86R" * 33 + b"."
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "it imports os.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "it imports builtins.eval"),
        (b"cnumpy\nload\n(S'x'\ntR.", "it imports numpy.load"),
        (b"(S'true'\nios\nsystem\n.", "it uses INST"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "its memo jumps to index"),
        (b"\x80\x04)\x94h\x00h\x00\x86\x94.", "it uses a tuple twice"),
        (b"\x80\x02Pid\n.", "it uses PERSID"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "damaged|BYTEARRAY8"),
        (b"\x80\x02]q\x00.", "a list instead of a dictionary"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00xX\x04\x00\x00\x00zlibtR.", "bytes written as"),
        (b"\x80\x02)" + b"\x85" * 100_000 + b".", "over 1,000 containers"),
        (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "over 1,000 containers"),
        (pickle.dumps({n * (2**61 - 1): 0 for n in range(2_000)}, 2), "over 1,000 keys"),
        (b"\x80\x02(" + b"K\x00K\x00" * 1001 + b"d.", "over 1,000 keys"),
        (b"\x80\x02}" + b"K\x00K\x00s" * 1001 + b".", "over 1,000 keys"),
        (AMPLIFYING, "over 32 rebuilt"),
        (b"", "damaged"),
        (b"no pickle", "damaged|it uses"),
    ],
)
def test_pickles_that_need_too_much_are_refused(data, reason):
    with pytest.raises(RefusedPickle, match=reason):
        load_plain(data)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2), np.float32),
        np.zeros(2, object),
        np.asfortranarray(np.ones((2, 3), np.uint8)),
    ],
)
def test_arrays_of_something_else(array):
    batch = load_plain(pickle.dumps({"data": array}, 2))
    with pytest.raises(RefusedPickle, match="an array of something other"):
        batch["data"].values()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": [1, 2]}, r"pixels \(7, 3072\) do not fit 2 labels"),
        ({"labels": ["a"] * 7}, r"pixels \(7, 3072\) do not fit 7 labels"),
        ({"labels": [0] * 6 + [2**70]}, "a label of over 31 bits"),
        ({"labels": None}, "it holds no images and labels"),
        ({"data": np.zeros((7, 12), np.uint8)}, r"pixels \(7, 12\) do not fit"),
    ],
)
def test_batches_that_do_not_fit(tmp_path, change, reason):
    folder = plant10(tmp_path)
    batch = {"data": pixels_of(7), "labels": [0] * 7, **change}
    (folder / "data_batch_4").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(
        DataError, match=f"data_batch_4 is not a CIFAR file, or is damaged: {reason}"
    ):
        read_cifar(folder)


def test_a_memo_thinned_out_by_pickletools_is_read(tmp_path):
    folder = plant10(tmp_path)
    before = read_cifar(folder).read(0)
    file = folder / "data_batch_1"
    file.write_bytes(pickletools.optimize(file.read_bytes()))
    assert np.array_equal(read_cifar(folder).read(0), before)
