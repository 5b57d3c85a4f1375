import pytest

from onsight.data import path_pattern
from onsight.data.index import TEST, TRAIN, UNSPLIT
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import ConfigError, DataError


@pytest.fixture
def files(tmp_path):
    for name in ("cat_001.jpg", "cat_002.jpg", "sub/dog_001.jpg", "readme.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize("pattern", ["([a-z]+)_[0-9]+", "cat|dog"])
def test_labels_are_found_in_names(files, pattern):
    source = find_source(str(files), ReadOptions(label_from=pattern))
    found = {
        locator: source.index.classes[label]
        for locator, label in zip(source.index.locators, source.index.labels, strict=True)
    }
    assert found == {"cat_001.jpg": "cat", "cat_002.jpg": "cat", "sub/dog_001.jpg": "dog"}
    assert [source.read(row) for row in range(3)] == [name.encode() for name in found]
    (problem,) = source.problems
    assert problem.path == "readme.txt"
    assert "finds no label in it" in problem.reason


def test_split_folders_give_the_split(tmp_path):
    for name in ("train/cat/1.jpg", "Test/cat/2.jpg", "cat.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    source = find_source(str(tmp_path), ReadOptions(label_from="cat"))
    splits = dict(zip(source.index.locators, source.index.splits, strict=True))
    assert splits == {"Test/cat/2.jpg": TEST, "cat.jpg": UNSPLIT, "train/cat/1.jpg": TRAIN}
    assert "with train/test" in source.description


def test_another_pattern_is_other_data(files):
    first, second = (
        find_source(str(files), ReadOptions(label_from=pattern)) for pattern in ("cat|dog", "[cd]")
    )
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("(", ConfigError, "is not a regular expression"),
        ("(" * 5000 + ")" * 5000, ConfigError, "is not a regular expression: maximum recursion"),
        ("a{4294967296}", ConfigError, "is not a regular expression: the repetition number"),
        ("zebra", DataError, "in any path, such as"),
    ],
)
def test_a_pattern_that_finds_nothing(files, pattern, error, message):
    with pytest.raises(error, match=message):
        find_source(str(files), ReadOptions(label_from=pattern))


def test_a_pattern_that_takes_for_ever_is_ended(files, monkeypatch):
    monkeypatch.setattr(path_pattern, "PATTERN_SECONDS", 0.5)
    (files / ("a" * 60 + ".png")).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"\(a\+\)\+\$ takes too long: it was ended after 0.5 s"):
        find_source(str(files), ReadOptions(label_from="(a+)+$"))


def test_a_file_has_no_names_in_it(files):
    with pytest.raises(DataError, match="is not a folder"):
        find_source(str(files / "readme.txt"), ReadOptions(label_from="x"))
