"""WebDataset shards, made by hand."""

import hashlib
import io
import json
import os
import tarfile

import pytest

from onsight.data.index import TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import DataError


def write(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_shards_with_splits(tmp_path):
    write(
        tmp_path / "train-0000.tar",
        {"000.jpg": b"one", "000.cls": b"3\n", "001.jpg": b"two", "001.cls": b"7"},
    )
    write(tmp_path / "val/0000.tar", {"a/5.cls": b"3", "a/5.PNG": b"three"})
    source = find_source(str(tmp_path))
    assert source.kind == "webdataset"
    assert list(source.index.locators) == [
        "train-0000.tar/000.jpg",
        "train-0000.tar/001.jpg",
        "val/0000.tar/a/5.PNG",
    ]
    assert source.index.classes == ("3", "7")
    assert source.index.labels.tolist() == [0, 1, 0]
    assert source.index.splits.tolist() == [TRAIN, TRAIN, VALIDATION]
    assert [source.read(row) for row in range(3)] == [b"one", b"two", b"three"]
    assert "3 images in 2 shards" in source.description


def test_labels_in_json(tmp_path):
    facts = json.dumps({"label": "cat", "width": 3}).encode()
    write(tmp_path / "0.tar", {"x.png": b"p", "x.json": facts, "y.png": b"q", "y.txt": b"dog"})
    source = find_source(str(tmp_path))
    assert source.index.classes == ("cat", "dog")
    assert source.index.splits.tolist() == [UNSPLIT] * 2


def test_what_cannot_be_used_is_listed(tmp_path):
    write(tmp_path / "0.tar", {"x.png": b"p", "x.cls": b"1", "y.png": b"q", "z.json": b"[" * 9})
    whole = write(tmp_path / "1.tar", {"x.png": b"p" * 9000, "x.cls": b"1"}).read_bytes()
    (tmp_path / "1.tar").write_bytes(whole[:700])
    source = find_source(str(tmp_path))
    assert len(source.index) == 1
    reasons = {problem.path: problem.reason for problem in source.problems}
    assert reasons["0.tar/y.png"] == "no label beside it (cls, txt, json)"
    assert reasons["0.tar/z.json"].startswith("no image beside it (jpg, ")
    assert reasons["1.tar"].startswith("a broken shard")


def test_names_with_several_dots_have_their_own_labels(tmp_path):
    members = {
        "bird.v2.png": b"1", "bird.v2.cls": b"a",
        "24.05.png": b"2", "24.05.cls": b"b",
        "24.06.png": b"3", "24.06.cls": b"c",
        "24.07.png": b"4",
        "5.image.jpg": b"5", "5.depth.npy": b"x", "5.cls": b"d",
        "6.jpg": b"6", "6.mask.png": b"x", "6.npy": b"x", "6.cls": b"e",
    }  # fmt: skip
    write(tmp_path / "0.tar", members)
    source = find_source(str(tmp_path))
    labels = [source.index.classes[label] for label in source.index.labels]
    images = [source.read(row) for row in range(len(source.index))]
    assert dict(zip(images, labels, strict=True)) == {
        b"1": "a", b"2": "b", b"3": "c", b"5": "d", b"6": "e"
    }  # fmt: skip
    listed = [problem.path for problem in source.problems]
    assert listed == ["0.tar/24.07.png", "0.tar/6.mask.png"]


def test_members_of_other_kinds_are_decoded_or_listed(tmp_path):
    members = {"0.png": b"p", "0.cls": b"a", "1.heic": b"q", "1.cls": b"b", "2.avif": b"r"}
    write(tmp_path / "0.tar", {**members, "README": b"s"})
    source = find_source(str(tmp_path))
    assert list(source.index.locators) == ["0.tar/0.png", "0.tar/1.heic"]
    assert [problem.path for problem in source.problems] == ["0.tar/2.avif", "0.tar/README"]


def test_a_shard_with_a_hole_is_listed(tmp_path):
    members = {f"{n}.{ending}": b"cat" for n in range(9) for ending in ("png", "cls")}
    content = bytearray(write(tmp_path / "0.tar", members).read_bytes())
    content[1024 * 4 : 1024 * 4 + 512] = bytes(512)  # a header
    (tmp_path / "0.tar").write_bytes(content)
    write(tmp_path / "1.tar", members)
    source = find_source(str(tmp_path))
    assert len(source.index) == 9
    (problem,) = source.problems
    assert problem.path == "0.tar"
    assert "never written" in problem.reason


def test_a_fifo_among_shards_is_listed(tmp_path):
    write(tmp_path / "0.tar", {"x.png": b"p", "x.cls": b"1"})
    os.mkfifo(tmp_path / "1.tar")
    (problem,) = find_source(str(tmp_path)).problems
    assert problem.path == "1.tar"
    assert "not a regular file" in problem.reason


def test_tars_of_class_folders_are_not_shards(tmp_path):
    write(tmp_path / "0.tar", {"cat/x.png": b"p", "dog/y.png": b"q"})
    with pytest.raises(DataError):
        find_source(str(tmp_path), ReadOptions("webdataset"))


def write_index(folder, entries):
    (folder / "index.json").write_text(json.dumps({"shardlist": entries}))


def test_a_changed_label_is_no_new_class(tmp_path):
    members = {"x.png": b"p", "x.cls": b"cat", "y.png": b"q", "y.cls": b"dog"}
    entries = []
    for name in ("0.tar", "1.tar"):
        content = write(tmp_path / name, members).read_bytes()
        entries.append({"url": name, "md5sum": hashlib.md5(content).hexdigest()})
    (tmp_path / "1.tar").write_bytes(content.replace(b"dog", b"dot"))
    assert find_source(str(tmp_path)).index.classes == ("cat", "dog", "dot")
    write_index(tmp_path, entries)
    source = find_source(str(tmp_path))
    assert source.index.classes == ("cat", "dog")
    (problem,) = source.problems
    assert problem.path == "1.tar"
    assert "MD5" in problem.reason


def test_a_shard_that_the_index_lists_has_to_be_there(tmp_path):
    write(tmp_path / "0.tar", {"x.png": b"p", "x.cls": b"cat"})
    write_index(tmp_path, [{"url": "0.tar"}, {"url": "1.tar"}])
    with pytest.raises(DataError, match=r"index.json lists 1.tar, which is missing"):
        find_source(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"shardlist": 3}', "shardlist: "),
        ('{"shardlist": [{"nsamples": 3}]}', r"shardlist\.0\.url: "),
        ('{"shardlist": [{"url": "../0.tar"}]}', r"shardlist\.0\.url: .*below the index"),
        ('{"shardlist": [{"url": "0.tar", "filesize": -1}]}', r"shardlist\.0\.filesize: "),
        ('{"shardlist": [{"url": "0.tar", "md5sum": "x"}]}', r"shardlist\.0\.md5sum: "),
    ],
    ids=["JSON", "depth", "list", "no name", "outside", "size", "checksum"],
)
def test_the_wrong_key_of_an_index_is_named(text, message, tmp_path):
    write(tmp_path / "0.tar", {"x.png": b"p", "x.cls": b"cat"})
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(DataError, match=rf"index\.json.*{message}"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("label", ["null", "NaN", "[1]", '"\\ud800"'])
def test_labels_in_json_have_to_be_texts_or_numbers(label, tmp_path):
    broken = f'{{"label": {label}}}'.encode()
    write(tmp_path / "0.tar", {"x.png": b"p", "x.cls": b"cat", "y.png": b"q", "y.json": broken})
    source = find_source(str(tmp_path))
    assert source.index.classes == ("cat",)
    assert [problem.path for problem in source.problems] == ["0.tar/y.png"]
