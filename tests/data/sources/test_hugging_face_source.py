"""Parquet files as Hugging Face writes them, made by hand."""

import io
import json
import random

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from onsight.data.decoding_memory import DecodingMemory
from onsight.data.index import TEST, TRAIN
from onsight.data.shards.store import ShardFile
from onsight.data.sources import hugging_face
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.tables import column_cells
from onsight.errors import DataError, ImageError

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def png(number):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


def write(path, numbers, labels, names=("cat", "dog"), rows=3, only_paths=False):
    """A file of small row groups; names: None for labels that are texts."""
    cells = [
        {"bytes": None if only_paths else png(number), "path": f"{number}.png"}
        for number in numbers
    ]
    kind = pyarrow.int64() if names else pyarrow.string()
    schema = pyarrow.schema([("image", IMAGE), ("label", kind)])
    if names:
        features = {"label": {"names": list(names), "_type": "ClassLabel"}}
        facts = json.dumps({"info": {"features": features}})
        schema = schema.with_metadata({"huggingface": facts})
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"image": cells, "label": labels}, schema=schema)
    parquet.write_table(table, path, row_group_size=rows)
    return path


def test_a_folder_with_splits_and_class_names(tmp_path):
    write(tmp_path / "data/train-00000-of-00002.parquet", range(5), [0, 1, 0, 1, 0])
    write(tmp_path / "data/train-00001-of-00002.parquet", range(5, 9), [1, 1, 0, 0])
    write(tmp_path / "data/test-00000-of-00001.parquet", range(9, 12), [0, 1, 1])
    source = find_source(str(tmp_path))
    assert source.kind == "huggingface"
    assert source.index.classes == ("cat", "dog")
    assert source.index.splits.tolist() == [TEST] * 3 + [TRAIN] * 9
    order = [9, 10, 11, *range(9)]
    assert [source.read(row) for row in range(12)] == [png(number) for number in order]
    assert source.index.labels.tolist() == [0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0]
    assert "columns image and label" in source.description


def test_one_file_whose_labels_are_texts(tmp_path):
    path = write(tmp_path / "pets.parquet", range(4), ["a", "b", "a", "b"], names=None)
    source = find_source(str(path))
    assert source.index.classes == ("a", "b")
    assert source.read(3) == png(3)


def test_a_manifest_of_paths_is_still_a_manifest(tmp_path):
    (tmp_path / "x.png").write_bytes(png(1))
    table = pyarrow.table({"path": ["x.png"], "label": ["cat"]})
    parquet.write_table(table, tmp_path / "list.parquet")
    assert find_source(str(tmp_path / "list.parquet")).kind == "manifest"


def test_images_that_are_elsewhere_are_refused_one_by_one(tmp_path):
    path = write(tmp_path / "pets.parquet", range(2), [0, 1], only_paths=True)
    with pytest.raises(ImageError, match="holds only its path"):
        find_source(str(path)).read(0)


def test_what_does_not_fit_together(tmp_path):
    write(tmp_path / "train-0.parquet", range(2), [0, 1])
    write(tmp_path / "train-1.parquet", range(2), [0, 1], names=("dog", "cat"))
    with pytest.raises(DataError, match="other columns or classes"):
        find_source(str(tmp_path))


def test_a_label_without_a_name_is_named_with_its_row(tmp_path):
    path = write(tmp_path / "pets.parquet", range(2), [0, 7])
    with pytest.raises(DataError, match="pets.parquet/0/1: label 7, but there are only 2 names"):
        find_source(str(path))


@pytest.mark.parametrize("missing", [None, -1])
def test_rows_without_a_label_are_listed(tmp_path, missing):
    path = write(tmp_path / "pets.parquet", range(3), [0, missing, 1])
    source = find_source(str(path))
    assert source.index.classes == ("cat", "dog")
    assert source.read(1) == png(2)
    assert source.problems == [("pets.parquet/0/1", "scan", "has no label")]


def write_columns(path, **columns):
    cells = [{"bytes": png(number), "path": ""} for number in range(len(columns["label"]))]
    parquet.write_table(pyarrow.table({"image": cells, **columns}), path)
    return str(path)


def test_labels_are_read_as_those_of_manifests_are(tmp_path):
    path = write_columns(tmp_path / "a.parquet", label=[1.0, float("nan"), 2.0])
    source = find_source(path)
    assert source.index.classes == ("1", "2")
    assert len(source.problems) == 1
    path = write_columns(tmp_path / "b.parquet", label=[" cat", "cat ", "dog"])
    assert find_source(path).index.classes == ("cat", "dog")
    path = write_columns(tmp_path / "c.parquet", label=[b"cat", b"dog"])
    with pytest.raises(DataError, match="c.parquet/0/0: the label is neither text nor a number"):
        find_source(path)


def test_a_long_label_of_many_rows_is_kept_once_and_refused(tmp_path, monkeypatch):
    alike = pyarrow.DictionaryArray.from_arrays([0] * 200, ["x" * 1_000_000])
    options = {"store_schema": False, "dictionary_pagesize_limit": 2_000_000}
    table = pyarrow.table({"image": [{"bytes": b"x", "path": ""}] * 200, "label": alike})
    parquet.write_table(table, tmp_path / "a.parquet", **options)
    sizes = []

    def measure(column):
        sizes.append(column.nbytes)
        return column_cells(column)

    monkeypatch.setattr(hugging_face, "column_cells", measure)
    with pytest.raises(DataError, match="a.parquet/0/0: a label of 1,000,000 characters"):
        find_source(str(tmp_path / "a.parquet"))
    assert sum(sizes) < 2_000_000


@pytest.mark.parametrize("label", [["a", "b"], {"name": "a"}])
def test_labels_of_several_parts_are_refused(label, tmp_path):
    path = write_columns(tmp_path / "a.parquet", label=[label])
    with pytest.raises(DataError, match="the labels in label are neither text nor numbers: "):
        find_source(path, ReadOptions("huggingface"))


@pytest.mark.parametrize("content", ["abc", 5, [1, 300]])
def test_images_that_are_not_bytes(tmp_path, content):
    images = pyarrow.array([{"bytes": content, "path": "x"}])
    parquet.write_table(pyarrow.table({"image": images, "label": ["cat"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="bytes of image are .*, but must be binary"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("twice", ["image", "label"])
def test_two_columns_of_one_name(tmp_path, twice):
    images, labels = pyarrow.array([{"bytes": png(0), "path": "x"}], IMAGE), pyarrow.array(["cat"])
    columns = {"image": images, "label": labels}
    table = pyarrow.table([images, labels, columns[twice]], names=["image", "label", twice])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"two columns named {twice}"):
        find_source(str(tmp_path))


def test_columns_that_are_not_used_are_named(tmp_path):
    columns = {"label": ["a", "b"], "Split": ["train", "test"], "group": [1, 2], "size": [3, 4]}
    source = find_source(write_columns(tmp_path / "a.parquet", **columns))
    assert source.notes == ["not used: Split and group; Parquet files of images are split by name"]


def test_a_file_without_labels(tmp_path):
    table = pyarrow.table({"image": [{"bytes": png(1), "path": ""}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column of labels; it has: image"):
        find_source(str(tmp_path / "a.parquet"), ReadOptions("huggingface"))


def test_a_column_of_labels_is_chosen(tmp_path):
    cells = [{"bytes": png(number), "path": f"{number}.png"} for number in range(2)]
    columns = {"image": cells, "label": ["old", "young"], "species": ["cat", "dog"]}
    schema = pyarrow.schema(
        [("image", IMAGE), ("label", pyarrow.string()), ("species", pyarrow.string())]
    )
    parquet.write_table(pyarrow.table(columns, schema=schema), tmp_path / "pets.parquet")
    path = str(tmp_path / "pets.parquet")
    assert find_source(path).index.classes == ("old", "young")
    chosen = find_source(path, ReadOptions(label="species"))
    assert chosen.index.classes == ("cat", "dog")
    assert chosen.fingerprint != find_source(path).fingerprint
    with pytest.raises(DataError, match="the one that --label names"):
        find_source(path, ReadOptions(label="breed"))


def test_equal_images_are_counted_as_often_as_they_are_read(tmp_path, monkeypatch):
    noise = b"x" + random.Random(0).randbytes(10_000)
    cells = [{"bytes": noise, "path": "a.png"}] * 100
    schema = pyarrow.schema([("image", IMAGE), ("label", pyarrow.string())])
    table = pyarrow.table({"image": cells, "label": ["cat"] * 100}, schema=schema)
    parquet.write_table(table, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    assert find_source(str(tmp_path / "a.parquet")).read(99) == noise
    monkeypatch.setattr(hugging_face, "ROW_GROUP_BYTES", 100_000)
    with pytest.raises(ImageError, match="row group 0 holds over 1 GB of images"):
        find_source(str(tmp_path / "a.parquet")).read(0)


def test_row_groups_are_kept_in_memory_as_long_as_they_fit(tmp_path, monkeypatch):
    cells = [{"bytes": bytes([number]) * 10_000, "path": ""} for number in range(6)]
    table = pyarrow.table({"image": cells, "label": ["cat"] * 6})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    monkeypatch.setattr(hugging_face, "ROW_GROUP_BYTES", 25_000)
    monkeypatch.setattr(hugging_face, "MEMORY", DecodingMemory(20_000))
    source = find_source(str(tmp_path / "a.parquet"))
    opened = []
    monkeypatch.setattr(
        hugging_face, "ShardFile", lambda *args: opened.append(args) or ShardFile(*args)
    )
    for row, reads in ((0, 1), (1, 2), (2, 3), (2, 3), (1, 3), (3, 4), (1, 4), (0, 5), (2, 6)):
        assert source.read(row) == bytes([row]) * 10_000
        assert len(opened) == reads
