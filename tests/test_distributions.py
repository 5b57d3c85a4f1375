"""The distributions of this repository are released together, with one version and licence."""

import ast
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def read(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def project(name):
    return read(ROOT / "packages" / name)["project"]


def names(requirements):
    return {Requirement(requirement).name for requirement in requirements}


def test_all_have_one_version_and_the_licence():
    root = read(ROOT)["project"]
    assert [folder.name for folder in PACKAGES] == [
        "onsight-explain",
        "onsight-lint",
        "onsight-run",
    ]
    for folder in PACKAGES:
        found = read(folder)["project"]
        assert found["name"] == folder.name
        for key in ("version", "requires-python", "license"):
            assert found[key] == root[key]
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_each_needs_as_little_as_it_can():
    version = read(ROOT)["project"]["version"]
    assert project("onsight-lint")["dependencies"] == []
    explain = project("onsight-explain")["dependencies"]
    assert names(explain) == {"onsight-lint", "rich", "torch"}
    assert f"onsight-lint=={version}" in explain


@pytest.fixture
def dependencies(monkeypatch):
    """Those of onsight, as a build of the repository at this path has them."""
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    update = runpy.run_path(str(ROOT / "hatch_build.py"))["Dependencies"].update
    config = read(ROOT)["tool"]["hatch"]["metadata"]["hooks"]["custom"]

    def dependencies(root):
        metadata = {"version": "1.2"}
        update(SimpleNamespace(root=str(root), config=config), metadata)
        return {
            requirement.name: requirement
            for requirement in map(Requirement, metadata["dependencies"])
        }

    return dependencies


def test_a_checkout_installs_the_packages_beside_it(dependencies, monkeypatch):
    monkeypatch.delenv("ONSIGHT_RELEASE", raising=False)
    found = dependencies(ROOT)
    for name in ("onsight-lint", "onsight-explain"):
        assert found[name].url == (ROOT / "packages" / name).as_uri()
    assert "torch" in found


@pytest.mark.parametrize("why", ["a release", "a source distribution"])
def test_a_release_asks_for_the_packages_of_its_own_version(
    dependencies, monkeypatch, tmp_path, why
):
    if why == "a release":
        monkeypatch.setenv("ONSIGHT_RELEASE", "1")
    found = dependencies(ROOT if why == "a release" else tmp_path)
    for name in ("onsight-lint", "onsight-explain"):
        assert str(found[name]) == f"{name}==1.2"


def test_onsight_run_packs_only_modules_of_explain_that_need_nothing():
    """And those that they import: a part of a package may not import the rest."""
    wheel = read(ROOT / "packages/onsight-run")["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {
        (ROOT / "packages/onsight-run" / source).resolve()
        for source in wheel["force-include"]
        if source.endswith(".py")
    }
    allowed = {f"onsight_explain.{path.stem}" for path in packed} | sys.stdlib_module_names
    for path in packed:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert all({name, name.partition(".")[0]} & allowed for name in modules), path
