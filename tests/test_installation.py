"""Optional packages: what is missing is named with the command that installs it."""

import sys

import pytest

from onsight.errors import ConfigError, DataError
from onsight.installation import install_command, is_installed, require


def test_a_missing_package_is_named_with_its_extra_and_an_alternative(monkeypatch):
    monkeypatch.setattr("onsight.installation.distribution", lambda: "onsight-run")
    with pytest.raises(ConfigError) as error:
        require("no_such_package.part", "parquet", "writing a.parquet", ", or choose --csv")
    assert str(error.value) == (
        "writing a.parquet needs no_such_package: pip install 'onsight-run[parquet]', "
        "or choose --csv"
    )


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'onsight-run[parquet]'"),
        ('{"url": "file:///w/a.whl", "archive_info": {}}', "pip install 'onsight-run[parquet]'"),
        ('{"url": "file:///my%20code", "dir_info": {}}', "pip install '/my code[parquet]'"),
        (
            '{"url": "file:///code", "dir_info": {"editable": true}}',
            "pip install -e '/code[parquet]'",
        ),
    ],
)
def test_a_copy_from_a_folder_is_installed_again_from_there(origin, command, tmp_path, monkeypatch):
    there = tmp_path / "onsight_run-1.0.dist-info"
    there.mkdir()
    (there / "METADATA").write_text("Metadata-Version: 2.1\nName: onsight-run\nVersion: 1.0\n")
    if origin:
        (there / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("onsight.installation.distribution", lambda: "onsight-run")
    assert install_command("parquet") == command


def test_the_class_of_the_error_can_be_chosen():
    with pytest.raises(DataError, match="reading a needs no_such_package: pip install"):
        require("no_such_package", "parquet", "reading a", error=DataError)


def test_an_installed_package_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "explosive.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_installed("explosive")
    require("explosive", "none", "nothing")


def test_a_blocked_package_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "blocked", None)
    assert not is_installed("blocked")
    assert not is_installed("blocked.part")
