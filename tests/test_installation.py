"""Optional packages: what is missing is named with the command that installs it."""

import sys

import pytest

from onsight.errors import ConfigError, DataError
from onsight.installation import is_installed, require


def test_a_missing_package_is_named_with_its_extra_and_an_alternative(monkeypatch):
    monkeypatch.setattr("onsight.installation.distribution", lambda: "onsight-run")
    with pytest.raises(ConfigError) as error:
        require("no_such_package.part", "parquet", "writing a.parquet", ", or choose --csv")
    assert str(error.value) == (
        "writing a.parquet needs no_such_package: pip install 'onsight-run[parquet]', "
        "or choose --csv"
    )


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
