"""Manifests written here; every line must become a row or a problem."""

import json
import sys

import pyarrow
import pytest
from pyarrow import parquet

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.manifest import read_manifest
from onsight.data.sources.tables import column_cells, read_table
from onsight.errors import DataError, ImageError

LINES = [
    ("a/1.png", "cat", "train"),
    ("a/2.png", "dog", "Validation"),
    ("b/3.png", "cat", "test"),
]


@pytest.fixture
def images(tmp_path):
    """A folder with 1.png, 2.png, 3.png in a and b, each holding its own path."""
    for path in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode())
    return tmp_path


def write_csv(file, header, lines, delimiter=",", encoding="utf-8"):
    text = "".join(delimiter.join(cells) + "\n" for cells in [header, *lines])
    file.write_bytes(text.encode(encoding))
    return file


def write_jsonl(file, objects):
    file.write_text("".join(json.dumps(item) + "\n" for item in objects), encoding="utf-8")
    return file


def reasons(source):
    return [(problem.path, problem.reason) for problem in source.problems]


def make(folder, ending):
    header = ("path", "label", "split")
    file = folder / f"list{ending}"
    if ending == ".parquet":
        columns = dict(zip(header, map(list, zip(*LINES, strict=True)), strict=True))
        parquet.write_table(pyarrow.table({"pixels": [b"big"] * 3, **columns}), file)
        return file
    if ending in (".jsonl", ".ndjson"):
        return write_jsonl(file, [dict(zip(header, line, strict=True)) for line in LINES])
    return write_csv(file, header, LINES, "\t" if ending == ".tsv" else ",")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"])
def test_all_formats_agree(images, ending):
    source = read_manifest(make(images, ending))
    assert list(source.index.locators) == [line[0] for line in LINES]
    assert source.index.classes == ("cat", "dog")
    assert source.index.labels.tolist() == [0, 1, 0]
    assert source.index.splits.tolist() == [TRAIN, VALIDATION, TEST]
    assert [source.read(row) for row in range(3)] == [line[0].encode() for line in LINES]
    assert source.problems == []
    assert source.description == (
        f"{ending[1:].upper()} manifest with train/validation/test, 2 classes, 3 lines, "
        "columns path, label and split"
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_delimiters_byte_order_marks_and_other_names(images, delimiter, encoding):
    lines = [("a/1.png", "1", "caf\u00e9"), ("a/2.png", "2", " dog ")]
    file = write_csv(images / "m.csv", ("Image", "Nr", " CLASS "), lines, delimiter, encoding)
    source = read_manifest(file)
    assert list(source.index.locators) == ["a/1.png", "a/2.png"]
    assert source.index.classes == ("caf\u00e9", "dog")
    assert source.index.splits.tolist() == [UNSPLIT, UNSPLIT]


def test_quoted_cells_and_empty_lines(images):
    (images / "m.csv").write_text('path,label\n\n"a/1.png","a ""b"", c"\na/2.png,d\n\n')
    assert read_manifest(images / "m.csv").index.classes == ('a "b", c', "d")


def test_absolute_paths_stay_as_written(images, tmp_path_factory):
    far = tmp_path_factory.mktemp("far") / "9.png"
    far.write_bytes(b"far")
    source = read_manifest(write_csv(images / "m.csv", ("path", "label"), [(str(far), "x")]))
    assert list(source.index.locators) == [str(far)]
    assert source.read(0) == b"far"


def test_every_line_is_a_row_or_a_problem(images):
    (images / "a/folder.png").mkdir()
    lines = [
        ("a/1.png", "cat", "train"),
        ("a/none.png", "cat", "train"),
        ("a/1.png", "cat", "train"),
        ("a/./1.png", "cat", "train"),
        ("a/2.png", "cat", "train"),
        ("a/2.png", "dog", "train"),
        ("b/3.png", "", "train"),
        ("b/3.png", "owl", ""),
        ("a/folder.png", "cat", ""),
        ("a/1.png/x.png", "cat", ""),
        ("a/none.png", "cat", "train"),
    ]
    source = read_manifest(write_csv(images / "m.csv", ("path", "label", "split"), lines))
    missing = "listed, but there is no such file"
    assert list(source.index.locators) == ["a/1.png", "b/3.png"]
    assert source.index.splits.tolist() == [TRAIN, UNSPLIT]
    assert reasons(source) == [
        ("a/none.png", missing),
        ("a/1.png", "listed twice; used once"),
        ("a/./1.png", "listed twice; used once"),
        ("a/2.png", "listed under two labels: cat, dog"),
        ("a/2.png", "listed under two labels: cat, dog"),
        ("b/3.png", "has no label"),
        ("a/folder.png", "not a regular file"),
        ("a/1.png/x.png", missing),
        ("a/none.png", missing),
    ]
    assert len(source.index) + len(source.problems) == len(lines)


def test_one_file_in_two_splits_is_used_in_neither(images):
    lines = [("a/1.png", "cat", "train"), ("a/1.png", "cat", "test"), ("a/2.png", "cat", "test")]
    source = read_manifest(write_csv(images / "m.csv", ("path", "label", "split"), lines))
    assert reasons(source) == [("a/1.png", "listed in two splits: train, test")] * 2


def test_labels_that_are_not_text(images):
    objects = [
        {"path": "a/1.png", "label": 3},
        {"path": "a/2.png", "label": 3.0},
        {"path": "b/3.png", "label": None},
    ]
    source = read_manifest(write_jsonl(images / "m.jsonl", objects))
    assert source.index.classes == ("3",)
    assert reasons(source) == [("b/3.png", "has no label")]


def test_missing_groups_and_splits_of_pandas_are_missing(images):
    missing = float("nan")
    columns = {
        "path": ["a/1.png", "a/2.png"],
        "label": ["x", "y"],
        "group": [1.0, missing],
        "split": pyarrow.array([missing, missing]),
    }
    parquet.write_table(pyarrow.table(columns), images / "m.parquet")
    source = read_manifest(images / "m.parquet")
    assert source.groups == ["1", ""]
    assert source.index.splits.tolist() == [UNSPLIT, UNSPLIT]


def test_a_file_listed_with_several_groups_or_times(images):
    lines = [
        ("a/1.png", "cat", "g", ""),
        ("a/1.png", "cat", "h", ""),
        ("a/2.png", "cat", "", "1"),
        ("a/2.png", "cat", "", "2"),
        ("b/3.png", "cat", "", ""),
        ("b/3.png", "cat", "g", "3"),
    ]
    source = read_manifest(write_csv(images / "m.csv", ("path", "label", "group", "time"), lines))
    assert (list(source.index.locators), source.groups) == (["b/3.png"], ["g"])
    assert source.times.tolist() == [3]
    assert reasons(source) == [
        *[("a/1.png", "listed in two groups: g, h")] * 2,
        *[("a/2.png", "listed at two times: 1.0, 2.0")] * 2,
        ("b/3.png", "listed twice; used once"),
    ]


def test_parquet_of_pandas_with_missing_labels(images):
    table = pyarrow.table({"file": ["a/1.png", "a/2.png"], "label": [7.0, float("nan")]})
    parquet.write_table(table, images / "m.parquet")
    source = read_manifest(images / "m.parquet")
    assert source.index.classes == ("7",)
    assert reasons(source) == [("a/2.png", "has no label")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,kind\nx,y\n", "no column named path and none named label; it has: name, kind"),
        ("path,kind\nx,y\n", "no column named label; it has: path, kind"),
        ("", "it has: none"),
        ("path,label\na/1.png\n", r"m\.csv, line 2: 1 cells, but the header names 2"),
        ("path,label\na/1.png,x\na,b,c\n", r"m\.csv, line 3: 3 cells"),
        ('path,label\n"a/1.png,x\n', r"m\.csv, line 2: unexpected end of data"),
        ("path,label\n,x\n", "line 2: the path is ''"),
        (
            "path,label,split\na/1.png,x,trian\n",
            "line 2: unknown split 'trian'; known splits are train",
        ),
        (
            "path,label,time\na/1.png,x,3\na/2.png,x,\nb/3.png,x,2026-05-31\n",
            "line 4: some times are dates and others numbers",
        ),
        ("path,label\n", "lists no usable image: it is empty"),
        ("path,label\nno.png,x\n", r"lists no usable image \(line 2: no\.png: listed, but"),
    ],
)
def test_what_is_wrong_is_explained_with_its_line(images, text, message):
    (images / "m.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_manifest(images / "m.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a/1.png", "label": 1}\n{"path": \n', r"m\.jsonl, line 2: not valid JSON"),
        ('\n["a/1.png", 1]\n', "line 2: not a JSON object"),
        (
            '{"path": "a/1.png", "label": [1]}\n',
            "line 1: the label is neither text nor a number, but list",
        ),
        ('{"path": 5, "label": "x"}\n', "line 1: the path is 5"),
        ('{"path": "a\\u0000b", "label": "x"}\n', "line 1: not valid JSON: path has a NUL"),
        ('{"path": "\\ud800", "label": "x"}\n', "line 1: .*path has a lone surrogate"),
        ('{"path": "a", "label": "x", "group": "\\ud800"}\n', "group has a lone surrogate"),
        ("[" * 100_000 + "\n", "line 1: not valid JSON"),
        (
            '{"path": "a/1.png", "label": 1}\n{"path": "a/2.png", "label": 1, "split": "test"}\n',
            "line 2: has 'split', which the first line does not have",
        ),
    ],
)
def test_what_is_wrong_in_json_lines(images, text, message):
    (images / "m.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        read_manifest(images / "m.jsonl")


def test_text_that_is_not_utf8(images):
    (images / "m.csv").write_text("path,label\na/1.png,caf\u00e9\n", encoding="utf-16")
    with pytest.raises(DataError, match="is UTF-16 text; save it as UTF-8"):
        read_manifest(images / "m.csv")
    (images / "m.csv").write_bytes(b"path,label\na/1.png,cat\na/2.png,caf\xe9\n")
    with pytest.raises(DataError, match="line 3: byte 0xe9 at position 12 is not UTF-8 text"):
        read_manifest(images / "m.csv")


def test_broken_parquet(images):
    file = make(images, ".parquet")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a Parquet file, or is broken"):
        read_manifest(file)


def test_without_pyarrow_the_message_names_the_package(images, monkeypatch):
    file = make(images, ".parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install .*\[parquet\]'"):
        read_manifest(file)


def test_unknown_ending(images):
    (images / "m.txt").write_text("path,label\n")
    with pytest.raises(DataError, match=r"does not end in one of \.csv"):
        read_manifest(images / "m.txt")


def test_fingerprint_follows_manifest_and_images(images):
    file = make(images, ".csv")
    first = read_manifest(file).fingerprint
    assert read_manifest(file).fingerprint == first
    (images / "a/1.png").write_bytes(b"another image")
    changed = read_manifest(file).fingerprint
    file.write_text(file.read_text() + "\n")
    assert len({first, changed, read_manifest(file).fingerprint}) == 3


def test_image_gone_since(images):
    source = read_manifest(make(images, ".csv"))
    (images / "a/1.png").unlink()
    with pytest.raises(ImageError, match="No such file"):
        source.read(0)


@pytest.mark.parametrize("column", ["time", "label"])
def test_a_date_that_python_cannot_hold(images, column):
    columns = {"path": ["a/1.png"], "label": ["cat"]}
    columns[column] = pyarrow.array([2**60], pyarrow.timestamp("us"))
    parquet.write_table(pyarrow.table(columns), images / "m.parquet")
    with pytest.raises(DataError, match=r"m\.parquet is not a Parquet file, or is broken"):
        read_manifest(images / "m.parquet")


def test_an_index_that_a_broken_file_has():
    broken = pyarrow.DictionaryArray.from_arrays(pyarrow.array([-1]), ["cat", "dog"], safe=False)
    with pytest.raises(pyarrow.ArrowInvalid):
        column_cells(broken)


def test_two_columns_of_the_chosen_name(images):
    """Whatever the letters' case: either could be meant."""
    (images / "m.csv").write_text("path,Species,species\na/1.png,x,y\n")
    with pytest.raises(DataError, match="two columns named species"):
        read_manifest(images / "m.csv", "species")


def test_two_columns_of_one_name(images):
    (images / "twice.csv").write_text("path,label,Label\na.png,cat,dog\n")
    with pytest.raises(DataError, match="two columns named label"):
        read_manifest(images / "twice.csv")


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_line_that_never_ends(images, ending):
    (images / f"long{ending}").write_text('{"path": "a.png", "label": "' + 2_000_000 * "x")
    with pytest.raises(DataError, match="line 1: over 1,000,000 characters"):
        read_manifest(images / f"long{ending}")


def test_a_parquet_file_of_equal_rows_is_refused_before_they_are_read(images):
    alike = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1_000_000), ["a/1.png"])
    parquet.write_table(pyarrow.table({"path": alike, "label": alike}), images / "m.parquet")
    with pytest.raises(DataError, match=r"suspiciously compressed: 1,000,000 rows in [\d,]+ bytes"):
        read_manifest(images / "m.parquet")


def test_a_text_that_many_rows_of_a_parquet_file_have_is_kept_once(images):
    label = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, None, 0]), ["x" * 1000])
    cells = {"path": ["a/1.png", "a/2.png", "b/3.png"], "label": label}
    parquet.write_table(pyarrow.table(cells), images / "m.parquet")
    first, second, third = (row[1] for _, row in read_table(images / "m.parquet")[1])
    assert first is third
    assert (first, second) == ("x" * 1000, None)


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_column_of_labels_is_chosen(images, ending):
    cells = {"path": ["a/1.png", "a/2.png"], "species": ["cat", "dog"], "label": ["old", "young"]}
    file = images / f"two{ending}"
    if ending == ".parquet":
        parquet.write_table(pyarrow.table(cells), file)
    elif ending == ".jsonl":
        write_jsonl(
            file,
            [dict(zip(cells, line, strict=True)) for line in zip(*cells.values(), strict=True)],
        )
    else:
        write_csv(file, list(cells), list(zip(*cells.values(), strict=True)))
    assert read_manifest(file).index.classes == ("old", "young")
    chosen = read_manifest(file, "Species")
    assert chosen.index.classes == ("cat", "dog")
    assert "columns path and species" in chosen.description
    assert chosen.fingerprint != read_manifest(file).fingerprint
    with pytest.raises(DataError, match="has no column named breed; it has: path, species, label"):
        read_manifest(file, "breed")


def test_several_label_columns_need_a_choice(images):
    (images / "m.csv").write_text("path,category,label\na/1.png,cat,old\n")
    with pytest.raises(DataError, match="label and category; name the label column with --label"):
        read_manifest(images / "m.csv")
    assert read_manifest(images / "m.csv", "category").index.classes == ("cat",)


def test_the_metadata_of_a_hugging_face_folder_is_a_manifest(images):
    write_csv(images / "metadata.csv", ("file_name", "label"), [("a/1.png", "cat")])
    source = read_manifest(images / "metadata.csv")
    assert list(source.index.locators) == ["a/1.png"]
    assert "columns file_name and label" in source.description
