"""The distributions of this repository are released together, with one version and licence."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_all_have_one_version_and_onsight_asks_for_it():
    root = project(ROOT)
    assert project(ROOT / "packaging" / "run")["version"] == root["version"]
    ours = {one.name: str(one.specifier) for one in map(Requirement, root["dependencies"])}
    assert "onsight-lint" in {folder.name for folder in PACKAGES}
    for folder in PACKAGES:
        found = project(folder)
        assert found["name"] == folder.name
        assert found["version"] == root["version"]
        assert ours[folder.name] == f"=={root['version']}"
        assert found["requires-python"] == root["requires-python"]


def test_each_has_the_licence():
    for folder in PACKAGES:
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_linter_needs_no_other_package():
    assert project(ROOT / "packages" / "onsight-lint")["dependencies"] == []
