"""JSON values in the cache folder: whatever is wrong with a file, the value is computed again."""

import pytest

from onsight.data.cache import (
    cached_json_path,
    find_cache_folder,
    read_cached_json,
    write_cached_json,
)
from onsight.errors import ConfigError, DiskError


def test_a_value_is_found_by_its_key_and_version(tmp_path):
    path = cached_json_path(tmp_path, "plans", 1, {"a": 1, "b": 2})
    assert path.parent == tmp_path / "plans"
    assert write_cached_json(path, [1, 2]) is None
    assert read_cached_json(cached_json_path(tmp_path, "plans", 1, {"b": 2, "a": 1}), tuple) == (
        1,
        2,
    )
    for other in (
        cached_json_path(tmp_path, "plans", 2, {"a": 1, "b": 2}),
        cached_json_path(tmp_path, "plans", 1, {"a": 1}),
        cached_json_path(tmp_path, "models", 1, {"a": 1, "b": 2}),
    ):
        assert read_cached_json(other, tuple) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": 1}', "\x00", '{"value": "x"}'])
def test_a_damaged_value_is_no_value(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert read_cached_json(path, lambda value: int(value["value"])) is None


def test_an_error_of_the_disk_is_returned(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert isinstance(write_cached_json(tmp_path / "file" / "a.json", 1), OSError)

    def refuse(path, value):
        raise DiskError("no space left")

    monkeypatch.setattr("onsight.data.cache.write_json", refuse)
    assert str(write_cached_json(tmp_path / "a.json", 1)) == "no space left"


def test_a_file_is_no_cache_folder(tmp_path):
    (tmp_path / "gen.py").write_text("")
    with pytest.raises(ConfigError, match="is a file; choose another with --cache-folder"):
        find_cache_folder(str(tmp_path / "gen.py"))
