"""Files that anybody may have written: read as the standard library does, or refused by name."""

import csv
import io
import json
import os

import pytest

from onsight.errors import DataError
from onsight.limits import JSON_DEPTH, LINE_CHARACTERS
from onsight.untrusted import (
    parse_json,
    read_bytes,
    read_csv,
    read_json,
    read_lines,
    read_text,
    read_xml,
)

READERS = [
    read_bytes,
    read_text,
    read_json,
    read_xml,
    lambda path: list(read_lines(path)),
    lambda path: list(read_csv(path)),
]


@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_are_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "zero", "folder"):
        with pytest.raises(DataError, match=f"{name} cannot be read: not a regular file"):
            read(tmp_path / name)
    with pytest.raises(DataError, match="no file can have this name"):
        read(tmp_path / "a\0b")
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "gone")


@pytest.mark.parametrize("read", READERS[:4])
def test_a_large_file_is_not_read(tmp_path, read):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2 * 10**9)
    with pytest.raises(DataError, match=r"large has 2\.0 GB; such files are read up to 1 GB"):
        read(tmp_path / "large")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_json_is_read_as_the_standard_library_does(tmp_path, encoding):
    value = {"a": [1, -2.5, None, True, "\u00e4\U0001f600"], "b": {"c": [[]]}, "d": 10**300}
    (tmp_path / "a.json").write_text(json.dumps(value, ensure_ascii=False), encoding)
    assert read_json(tmp_path / "a.json") == value
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * (JSON_DEPTH + 1) + "]" * (JSON_DEPTH + 1), f"nested over {JSON_DEPTH} levels"),
        ('{"a": ' * (JSON_DEPTH + 1) + "1" + "}" * (JSON_DEPTH + 1), "nested over"),
        ('[{"name": "a\\u0000b"}]', r"name has a NUL: 'a\\x00b'"),
        ('{"a": {"names": ["x", "\\ud800"]}}', r"names has a lone surrogate: '\\ud800'"),
        ('{"\\ud800": "x"}', "has a lone surrogate"),
        ('{"id": 1' + "0" * 400 + "}", "id has over 308 digits"),
        ("1" + "0" * 5000, "is not valid JSON"),
    ],
)
def test_json_that_nothing_can_use(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=f"a.json is not valid JSON.*{message}|{message}"):
        read_json(tmp_path / "a.json")


def test_the_deepest_json_that_is_read():
    assert parse_json("[" * JSON_DEPTH + "]" * JSON_DEPTH)


def test_bytes_of_a_path_are_text_only_where_they_are_expected():
    assert parse_json('"\\udce9"', "surrogateescape") == "\udce9"
    with pytest.raises(ValueError, match="lone surrogate"):
        parse_json('"\\udce9"')
    with pytest.raises(ValueError, match="lone surrogate"):
        parse_json('"\\ud800"', "surrogateescape")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_are_those_of_the_standard_library(tmp_path, delimiter):
    rows = [["path", "label"], ["a b.png", 'x "y"'], ["c\nd\re.png", "f\r\ng"], ["", ","], [""]]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows([*rows, []])
    (tmp_path / "a.csv").write_text("\ufeff" + text.getvalue(), newline="")
    oracle = csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter)
    found = list(read_csv(tmp_path / "a.csv"))
    assert found == [(oracle.line_num, cells) for cells in oracle if cells]
    assert [cells for _, cells in found] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * LINE_CHARACTERS, "line 1: over 1,000,000 characters"),
        ("path\n" + "x," * LINE_CHARACTERS, "line 2: over 1,000,000 characters"),
        ("path\n" + '"x\n",' * (LINE_CHARACTERS // 4), "a row of over 1,000,000 characters"),
        ("path\na\0b\n", "line 2: has a NUL"),
        ('path\n"x', "line 2: unexpected end of data"),
    ],
)
def test_tables_that_nothing_can_use(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=f"a.csv, line .*{message}|a.csv, {message}"):
        list(read_csv(tmp_path / "a.csv"))


def test_a_table_may_be_longer_than_its_longest_row(tmp_path):
    (tmp_path / "a.csv").write_text('path\n"a\nb"\n' * (LINE_CHARACTERS // 8))
    assert sum(1 for _ in read_csv(tmp_path / "a.csv")) == LINE_CHARACTERS // 4


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_in_xml_are_refused_in_any_encoding(tmp_path, encoding):
    (tmp_path / "a.xml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', encoding)
    with pytest.raises(DataError, match="declares a document type"):
        read_xml(tmp_path / "a.xml")
    (tmp_path / "a.xml").write_text("<a>\u00e4</a>", encoding)
    assert read_xml(tmp_path / "a.xml").text == "\u00e4"
