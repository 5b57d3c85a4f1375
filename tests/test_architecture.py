"""The layers, files and folders that the documentation names are those of the package."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onsight"
PACKAGES = (PACKAGE, *ROOT.glob("packages/*/src/onsight_*"))


def test_package_init_files_are_empty():
    for package in PACKAGES:
        for path in package.rglob("__init__.py"):
            if path.parent != PACKAGE:
                assert path.read_text(encoding="utf-8") == ""


def test_no_pickle_and_no_unsafe_loading_in_the_package():
    for path in (path for package in PACKAGES for path in package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text
        assert "torch.save(" not in text
        if (
            path.name != "restricted_unpickler.py"
        ):  # reads the pickles of CIFAR without running anything
            assert not re.search(r"^\s*(import|from) pickle", text, re.MULTILINE)


@pytest.mark.parametrize("package", ["onsight", "onsight_explain"])
def test_the_layers_drawn_are_the_layers_enforced(package):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    blocks = [text.strip().splitlines() for text in page.split("```")[1::2]]
    drawn = [[re.split(r"  +", line)[0] for line in block] for block in blocks]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (
        contract["layers"] for contract in contracts if contract.get("containers") == [package]
    )
    words = [re.findall(r"\w+", " ".join(block)) for block in drawn]
    assert re.findall(r"\w+", " ".join(layers)) in words


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/decisions.md", "CONTRIBUTING.md"])
def test_the_places_that_are_named_exist(page):
    named = re.findall(r"`([\w./<>-]+)`", (ROOT / page).read_text(encoding="utf-8"))
    invented = re.compile(r"<|NAME|FAULT")
    places = [name for name in named if "/" in name and not invented.search(name)]
    missing = []
    for place in places:
        inner = [PACKAGE / "training", *ROOT.glob("packages/*"), *ROOT.glob("packages/*/tests")]
        roots = (ROOT, ROOT / "src", *PACKAGES, *inner)
        exists = any((root / place).exists() or (root / f"{place}.py").exists() for root in roots)
        missing += [] if exists else [place]
    assert not missing


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_names_that_are_written_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {name for name in re.findall(r"`([A-Za-z_]{3,})`", text) if "NAME" not in name}
    folders = ("src", "packages", "tests", "scripts")
    paths = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
    assert sorted(names - words - {"Makefile"}) == []
