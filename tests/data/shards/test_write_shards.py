"""Shards that `onsight shard` writes: the same bytes, classes and splits come back."""

import io
import json
import tarfile

import numpy as np
import pytest
from shard_files import png

from onsight.cli import main
from onsight.data.shards.write import PROGRESS_NAME, Target, write_shards
from onsight.data.sources.find import find_source
from onsight.errors import OutputError
from onsight.report.run_files import read_csv

BROKEN = "bro\rken.jpg"  # a carriage return ends a row for careless readers of CSV


@pytest.fixture
def pets(tmp_path):
    folder = tmp_path / "pets"
    for number in range(20):
        split = "train" if number < 15 else "test"
        path = folder / split / ("cat" if number % 3 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    return folder


def contents(source):
    """Each image's bytes with its class and split."""
    index = source.index
    return {
        source.read(row): (index.classes[index.labels[row]], int(index.splits[row]))
        for row in range(len(index))
    }


def test_bytes_classes_and_splits_come_back(pets, memory, tmp_path):
    written = write_shards(find_source(str(pets)), Target.open("memory://out"), 16_000)
    assert len(written.shards) > 3
    assert all(shard["filesize"] <= 16_000 for shard in written.shards)
    assert sorted(memory.ls("/out", detail=False))[0] == "/out/index.json"
    assert contents(find_source("memory://out")) == contents(find_source(str(pets)))
    with tarfile.open(fileobj=io.BytesIO(memory.cat("/out/train-000001.tar"))) as archive:
        endings = [name.rpartition(".")[2] for name in archive.getnames()]
    assert endings == ["png", "cls"] * (len(endings) // 2)
    index = json.loads(memory.cat("/out/index.json"))
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == 20


def test_a_killed_call_is_continued(pets, tmp_path, monkeypatch):
    source = find_source(str(pets))
    whole = Target.open(str(tmp_path / "whole"))
    write_shards(source, whole, 12_000)
    target, wrote = Target.open(str(tmp_path / "out")), []

    class Killed(BaseException):
        pass

    def write(self, name, content):
        if name.endswith(".tar"):
            if len(wrote) == 2:
                raise Killed
            wrote.append(name)
        original(self, name, content)

    original = Target.write
    with monkeypatch.context() as patch:
        patch.setattr(Target, "write", write)
        with pytest.raises(Killed):
            write_shards(source, target, 12_000)
    assert PROGRESS_NAME in target.sizes()
    written = write_shards(source, target, 12_000)
    assert written.kept == 2
    files = {path.name: path.read_bytes() for path in whole.folder.iterdir()}
    assert {path.name: path.read_bytes() for path in target.folder.iterdir()} == files
    (target.folder / "index.json").rename(target.folder / PROGRESS_NAME)  # killed before its end
    assert write_shards(source, target, 12_000).kept == len(written.shards)
    assert {path.name: path.read_bytes() for path in target.folder.iterdir()} == files


def truncate(content):
    return content[:-1]


def change(content):
    return content[:-1] + b"x"


@pytest.mark.parametrize("damage", [None, truncate, change])
@pytest.mark.parametrize("name", ["train-000001.tar", "test-000009.tar"])
def test_a_damaged_shard_is_written_again(damage, name, pets, tmp_path):
    source, target = find_source(str(pets)), Target.open(str(tmp_path / "out"))
    first = write_shards(source, target, 16_000)
    files = {path.name: path.read_bytes() for path in target.folder.iterdir()}
    if damage:
        (target.folder / name).write_bytes(damage(files[name]))
    else:
        (target.folder / name).unlink()
    again = write_shards(source, target, 16_000)
    assert again.kept == len(first.shards) - 1
    assert again.shards == first.shards
    assert {path.name: path.read_bytes() for path in target.folder.iterdir()} == files


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_damaged_remote_shard_is_written_again(is_deleted, pets, memory):
    source, target = find_source(str(pets)), Target.open("memory://out")
    write_shards(source, target, 16_000)
    content = memory.cat("/out/train-000001.tar")
    memory.rm_file("/out/train-000001.tar")
    if not is_deleted:
        memory.pipe_file("/out/train-000001.tar", content[:-1])
    write_shards(source, target, 16_000)
    assert memory.cat("/out/train-000001.tar") == content


@pytest.mark.parametrize("classes", [["a", "a ", " ", "b\t"], ["ä x", "猫"]])
def test_labels_come_back_as_they_were(classes, tmp_path):
    for number, name in enumerate(classes):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / "x.png").write_bytes(png(number))
    source = find_source(str(tmp_path / "data"))
    assert len(source.index.classes) == len(classes)
    write_shards(source, Target.open(str(tmp_path / "out")), 100_000)
    assert contents(find_source(str(tmp_path / "out"))) == contents(source)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", ""], "--out is empty"),
        (["--out", "s3://"], "--out s3:// names no place; write it as s3://bucket/folder"),
        (["--out", "pets/test/dog/18.png"], "18.png is a file; --out needs a folder"),
        (["--out", "x", "--shard-megabytes", "nan"], "must be from 0.1 to 2,000"),
        (["--out", "x", "--shard-megabytes", "inf"], "must be from 0.1 to 2,000"),
        (["--out", "x", "--problems", "x/index.json"], "in the folder of the shards"),
    ],
)
def test_outputs_and_sizes_that_make_no_sense(words, message, pets, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["shard", str(pets), *words])
    assert left.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


@pytest.mark.parametrize("column", ["group", "time"])
@pytest.mark.parametrize("is_split", [False, True])
def test_groups_and_times_need_a_split(column, is_split, pets, tmp_path, capsys):
    """Shards keep neither, so images of one patient would be on both sides of a new split."""
    paths = sorted(path.relative_to(tmp_path) for path in pets.rglob("*.png"))
    rows = [f"{path},{path.parts[2]},{number},{path.parts[1]}" for number, path in enumerate(paths)]
    header = f"path,label,{column},{'split' if is_split else 'side'}"
    (tmp_path / "pets.csv").write_text("\n".join([header, *rows, ""]))
    with pytest.raises(SystemExit) as left:
        main(["shard", str(tmp_path / "pets.csv"), "--out", str(tmp_path / "shards")])
    assert left.value.code == (0 if is_split else 2)
    assert (f"the images have {column}s" in capsys.readouterr().err) != is_split
    assert (tmp_path / "shards").exists() == is_split


def test_two_commands_do_not_write_into_one_folder(pets, bars, tmp_path):
    source, other = find_source(str(pets)), find_source(str(bars))
    target = Target.open(str(tmp_path / "out"))

    def write_other(rows):
        with pytest.raises(OutputError, match="did not write from these"):
            write_shards(other, target, 10_000_000)

    write_shards(source, target, 10_000_000, write_other)
    assert contents(find_source(str(tmp_path / "out"))) == contents(source)


def test_what_others_have_written_is_left_alone(pets, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.tar").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"mine.tar"):
        write_shards(find_source(str(pets)), Target.open(str(tmp_path / "out")), 10_000)
    assert (tmp_path / "out" / "mine.tar").read_bytes() == b"mine"


def test_the_command(pets, tmp_path, capsys):
    (pets / "train" / "cat" / BROKEN).write_bytes(b"")
    out = tmp_path / "shards"
    with pytest.raises(SystemExit) as left:
        main(["shard", str(pets), "--out", str(out), "--json", "--problems", f"{out}.csv"])
    assert left.value.code in (0, None)
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["images"] == 20
    assert facts["problems"] == 1
    (problem,) = read_csv(tmp_path / "shards.csv")
    assert problem["path"].endswith(BROKEN)
    assert contents(find_source(str(out))) == contents_without_broken(pets)


def contents_without_broken(pets):
    (pets / "train" / "cat" / BROKEN).unlink()
    return contents(find_source(str(pets)))


def test_plain_pixels_become_png(tmp_path):
    from onsight.data.sources.memory import read_memory_data

    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 5), np.uint8)
    source = read_memory_data((pixels, ["a", "\udcff"] * 3))  # a byte that is no UTF-8
    write_shards(source, Target.open(str(tmp_path / "out")), 100_000)
    back = find_source(str(tmp_path / "out"))
    from PIL import Image

    found = {np.asarray(Image.open(io.BytesIO(back.read(row)))).tobytes() for row in range(6)}
    assert found == {image.tobytes() for image in pixels}
    assert back.index.classes == source.index.classes == ("a", "\udcff")
