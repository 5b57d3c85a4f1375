"""Named sets. torchvision's download is replaced: it fails, or creates its files."""

import pickle
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from onsight.data.sources import named
from onsight.data.sources.find import find_source
from onsight.data.sources.named import NAMED_SETS, NAMES, find_named_root, match_name, read_named
from onsight.errors import DataError, MissingDataset


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSIGHT_DATA", str(tmp_path / "sets"))
    return tmp_path / "sets"


def plant_idx(folder):
    for prefix, count in (("train", 6), ("t10k", 3)):
        images = struct.pack(">4I", 0x803, count, 2, 2) + bytes(range(4 * count))
        labels = struct.pack(">2I", 0x801, count) + bytes(n % 3 for n in range(count))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def plant_cifar(folder):
    names = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]
    for name in [*names, "test_batch"]:
        batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
        (folder / name).write_bytes(pickle.dumps(batch))


def plant_tree(folder):
    for label in ("Forest", "River"):
        (folder / label).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / label / "1.jpg")


PLANT = {"mnist": plant_idx, "fashion-mnist": plant_idx, "kmnist": plant_idx,
         "cifar10": plant_cifar, "eurosat": plant_tree}  # fmt: skip


def test_names_in_any_spelling():
    spellings = ("CIFAR10", "cifar-10", "FashionMNIST", "fashion_mnist", "EuroSAT")
    assert [match_name(name) for name in spellings] == [
        "cifar10", "cifar10", "fashion-mnist", "fashion-mnist", "eurosat",
    ]  # fmt: skip
    assert match_name("imagenet") is None


@pytest.mark.parametrize("name", NAMED_SETS)
def test_torchvision_has_the_class_and_fills_the_folder(name, tmp_path):
    """The table agrees with what torchvision itself says about its folders."""
    chosen = NAMED_SETS[name]
    kind = getattr(datasets, chosen.torchvision_class)
    first = chosen.folder.split("/")[0]
    if issubclass(kind, datasets.CIFAR10):
        assert kind.base_folder == chosen.folder
    elif issubclass(kind, datasets.MNIST):
        assert (kind.__name__, "raw") == (first, chosen.folder.split("/")[1])
        assert all(file in chosen.files for file, _ in kind.resources)
    elif name == "imagenette":
        assert Path(kind._ARCHIVES["full"][0]).stem == chosen.folder
    else:
        plant_tree(tmp_path / chosen.folder)
        assert len(kind(tmp_path)) == 2


@pytest.mark.parametrize("name", PLANT)
def test_files_that_are_there_are_read_without_torchvision(name, root, monkeypatch):
    folder = root / NAMED_SETS[name].folder
    folder.mkdir(parents=True)
    PLANT[name](folder)
    monkeypatch.setattr(named, "_fetch", None)
    source = read_named(name)
    assert source.root == folder
    assert source.description.startswith(f"{name} in {folder}: ")


def test_download_is_moved_into_place_whole(root, monkeypatch, capsys):
    def download(self):
        print("torchvision talks")
        Path(self.raw_folder).mkdir(parents=True)
        plant_idx(Path(self.raw_folder))

    monkeypatch.setattr(datasets.MNIST, "download", download)
    assert len(read_named("mnist").index) == 9
    assert [file.name for file in root.iterdir()] == ["MNIST"]
    monkeypatch.setattr(datasets.MNIST, "download", None)  # not needed a second time
    assert len(read_named("mnist").index) == 9
    out, err = capsys.readouterr()
    assert out == ""
    assert "torchvision talks" in err


def test_faster_run_beside_this_one_wins(root, monkeypatch):
    def download(self):
        for folder in (Path(self.raw_folder), root / "MNIST/raw"):
            folder.mkdir(parents=True)
            plant_idx(folder)

    monkeypatch.setattr(datasets.MNIST, "download", download)
    assert len(read_named("mnist").index) == 9


@pytest.mark.parametrize(
    "failure", [URLError("no route"), RuntimeError("tried:\nno route"), OSError(28, "no route")]
)
def test_without_a_network_the_files_to_put_are_named(root, monkeypatch, failure):
    def download(self):
        Path(self.raw_folder).mkdir(parents=True)
        (Path(self.raw_folder) / "half a file").touch()
        raise failure

    monkeypatch.setattr(datasets.MNIST, "download", download)
    with pytest.raises(MissingDataset) as error:
        read_named("fashion-mnist")
    message = str(error.value)
    assert "cannot be downloaded: " in message
    assert "no route" in message.splitlines()[0]
    assert "train-images-idx3-ubyte.gz" in message
    assert str(root / "FashionMNIST/raw") in message
    assert "onsight train FOLDER" in message
    assert list(root.iterdir()) == []


def test_without_torchvision(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    with pytest.raises(DataError, match=r"cannot be downloaded: .*torchvision"):
        read_named("cifar10")


def test_unknown_name():
    with pytest.raises(DataError, match=r"no dataset is called 'mnits'\. Did you mean .*mnist"):
        read_named("mnits")


def test_every_known_name_is_listed():
    with pytest.raises(DataError) as error:
        read_named("nothing")
    assert all(name in str(error.value) for name in NAMES)
    assert {"PetImages", "random-vectors", *NAMED_SETS} == set(NAMES)


def test_pets_are_here_or_below_the_root_and_are_never_downloaded(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named, "_fetch", None)
    with pytest.raises(MissingDataset) as error:
        find_source("PetImages")
    for words in (str(root), "current folder", "Cat and Dog", "Kaggle Cats and Dogs Dataset"):
        assert words in str(error.value)
    plant_tree(root / "PetImages")
    for name in ("PetImages", "petimages"):
        assert find_source(name).root == root / "PetImages"
    plant_tree(tmp_path / "PetImages")
    for name in ("PetImages", "petimages"):
        assert find_source(name).root == tmp_path / "PetImages"


def test_place_without_a_setting(monkeypatch):
    monkeypatch.delenv("ONSIGHT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert find_named_root() == Path("/somewhere/onsight/datasets")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_named_root() == Path.home() / ".cache/onsight/datasets"
