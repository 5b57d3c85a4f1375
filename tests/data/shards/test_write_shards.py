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
    assert PROGRESS_NAME in target.names()
    written = write_shards(source, target, 12_000)
    assert written.kept == 2
    assert target.names() == whole.names()
    for name in whole.names():
        assert target.read(name) == whole.read(name)
    assert write_shards(source, target, 12_000).kept == len(written.shards)


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
    source = read_memory_data((pixels, ["a", "b"] * 3))
    write_shards(source, Target.open(str(tmp_path / "out")), 100_000)
    back = find_source(str(tmp_path / "out"))
    from PIL import Image

    found = {np.asarray(Image.open(io.BytesIO(back.read(row)))).tobytes() for row in range(6)}
    assert found == {image.tobytes() for image in pixels}
