"""What DATA is recognised as, by content and by name; messages for what is not data."""

import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from onsight.config import Config
from onsight.data.sources import find
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import ConfigError, DataError


def test_a_line_break_in_the_name_of_a_class_is_refused(tmp_path):
    for name in ("cat", "dog\nok"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    with pytest.raises(DataError, match=r"class 'dog\\nok' has a line break"):
        find_source(str(tmp_path))


def plant_folders(root):
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        (root / label / "1.png").write_bytes(b"image")
    return root


def plant_idx(root):
    root.mkdir()
    (root / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 1, 1, 1) + b"x")
    (root / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 1) + b"\1")
    return root


def plant_cifar(root):
    (root / "cifar-100-python").mkdir(parents=True)
    batch = pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [0]})
    for name in ("train", "test"):
        (root / "cifar-100-python" / name).write_bytes(batch)
    meta = pickle.dumps({"fine_label_names": ["apple"]})
    (root / "cifar-100-python" / "meta").write_bytes(meta)
    return root


def plant_zip(root):
    root.mkdir()
    with zipfile.ZipFile(root / "pets.zip", "w") as archive:
        archive.writestr("cat/1.png", b"image")
    return root / "pets.zip"


def plant_tar(root):
    plant_folders(root / "pets")
    with tarfile.open(root / "pets.data", "w:xz") as archive:  # recognised by content alone
        archive.add(root / "pets", "pets")
    return root / "pets.data"


def plant_manifest(root):
    plant_folders(root)
    (root / "list.CSV").write_text("path,label\ncat/1.png,cat\n")
    return root / "list.CSV"


@pytest.mark.parametrize(
    ("plant", "kind", "count"),
    [
        (plant_folders, "folders", 2),
        (plant_idx, "idx", 1),
        (plant_cifar, "cifar", 2),
        (plant_zip, "archive", 1),
        (plant_tar, "archive", 2),
        (plant_manifest, "manifest", 1),
    ],
)
def test_data_is_recognised(tmp_path, plant, kind, count):
    data = plant(tmp_path / "data")
    source = find_source(str(data))
    assert (source.kind, len(source.index)) == (kind, count)
    assert source.root.is_absolute()
    assert source.description
    forced = find_source(str(data), ReadOptions(kind))
    assert (forced.kind, forced.fingerprint) == (kind, source.fingerprint)


def test_every_format_can_be_forced():
    options = get_args(Config.model_fields["data_format"].annotation)
    assert set(options) == {"auto", "torchvision", *find._formats("", None)}


def test_a_format_overrides_what_was_recognised(tmp_path):
    data = plant_idx(tmp_path / "data")
    plant_folders(data)
    assert find_source(str(data)).kind == "idx"
    folders = find_source(str(data), ReadOptions("folders"))
    assert folders.kind == "folders"
    assert len(folders.problems) == 2


def test_the_demo_is_inside_the_package():
    source = find_source("demo")
    assert (len(source.index), len(source.index.classes)) == (7000, 10)
    assert np.bincount(source.index.splits).tolist() == [0, 6000, 0, 1000]
    assert source.description.startswith("the demo, ")
    assert source.read(0)[1:4] == b"PNG"


def test_the_demo_may_be_a_folder_too(tmp_path, monkeypatch):
    plant_folders(tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert find_source("demo").kind == "archive"
    assert find_source("./demo").kind == "folders"


def test_relative_path_and_link_to_a_folder_share_a_root(tmp_path, monkeypatch):
    plant_folders(tmp_path / "data")
    (tmp_path / "link").symlink_to("data")
    monkeypatch.chdir(tmp_path)
    roots = {find_source(data).root for data in ("data", "./link", str(tmp_path / "data"))}
    assert roots == {tmp_path / "data"}


def test_named_sets(tmp_path, monkeypatch):
    named = find_source(str(plant_folders(tmp_path / "pets")))
    monkeypatch.setattr(
        find, "read_named", lambda data: replace(named, description=f"named {data}")
    )
    monkeypatch.chdir(tmp_path)
    assert find_source("FashionMNIST").description == "named FashionMNIST"
    plant_folders(tmp_path / "cifar10")
    assert find_source("cifar10").kind == "folders"  # what exists comes first
    assert find_source("cifar10", ReadOptions("torchvision")).description == "named cifar10"
    with pytest.raises(DataError, match="mnist does not exist"):
        find_source("mnist", ReadOptions("folders"))


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("pest", r"pest does not exist\. Did you mean pets\?"),
        ("mnits", r"mnits does not exist\. Did you mean .*mnist.*\?"),
        ("nothing like it at all", r"nothing like it at all does not exist\.$"),
        ("pets/mnits", r"pets/mnits does not exist\.$"),
        ("none/such/folder", r"none/such/folder does not exist\.$"),
        ("x" * 300, "File name too long"),
        ("nul\0", "does not exist"),
        ("", "DATA is empty"),
    ],
)
def test_what_is_not_there(tmp_path, monkeypatch, data, hint):
    plant_folders(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=hint):
        find_source(data)


def test_near_names_are_looked_for_beside_the_path(tmp_path):
    plant_folders(tmp_path / "pets" / "train")
    with pytest.raises(DataError, match=r"trian does not exist\. Did you mean train\?"):
        find_source(str(tmp_path / "pets" / "trian"))


@pytest.mark.parametrize("data_format", ["manifest", "archive"])
def test_folder_forced_into_a_file_format(tmp_path, data_format):
    data = str(plant_folders(tmp_path / "pets"))
    with pytest.raises(
        DataError, match=f"is not a file, so it cannot be read with --data-format {data_format}"
    ):
        find_source(data, ReadOptions(data_format))


@pytest.mark.parametrize("data_format", ["folders", "idx", "cifar"])
def test_file_forced_into_a_folder_format(tmp_path, data_format):
    data = str(plant_zip(tmp_path / "data"))
    with pytest.raises(DataError, match=f"is not a folder, .* --data-format {data_format}"):
        find_source(data, ReadOptions(data_format))


def test_files_of_no_known_format(tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match="not a recognised dataset file"):
        find_source(str(tmp_path / "cat.jpg"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a folder nor a regular file"):
        find_source(str(tmp_path / "pipe"))
    with pytest.raises(DataError, match="is not a file"):
        find_source(str(tmp_path / "pipe"), ReadOptions("archive"))


@pytest.mark.parametrize("name", ["cat/pipe.tar", "a.tar", "a.parquet", "data/a.parquet"])
def test_a_fifo_with_the_name_of_a_shard_is_not_waited_for(name, tmp_path):
    data = plant_folders(tmp_path / "pets")
    (data / name).parent.mkdir(exist_ok=True)
    os.mkfifo(data / name)
    source = find_source(str(data))
    assert source.kind == "folders"
    assert [(problem.path, problem.reason) for problem in source.problems] == [
        (name, "not a regular file")
    ]


def test_unreadable_folder(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    data = str(plant_folders(tmp_path / "pets"))
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(DataError, match=r"pets cannot be read: Permission denied"):
        find_source(data)


def test_torch_is_not_imported():
    code = (
        "import sys; from onsight.data.sources.find import find_source; find_source('demo');"
        "print({'torch', 'torchvision', 'pyarrow', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_column_of_labels_needs_columns(tmp_path):
    data = str(plant_folders(tmp_path / "pets"))
    with pytest.raises(ConfigError, match="--label names a column, but DATA has none: .*folders"):
        find_source(data, ReadOptions(label="species"))


def test_options_may_be_missing_in_older_configs():
    assert ReadOptions.from_config({"data_format": "idx", "model": "auto"}) == ReadOptions("idx")
