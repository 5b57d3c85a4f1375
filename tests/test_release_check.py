"""The release check sees other bytes, files too many, too few or changed, and another version."""

import runpy
import zipfile
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "release_check.py"))
TREE = {"onsight/__init__.py": b"", "onsight/a.py": b"a = 1\n"}
METADATA = {"onsight-1.dist-info/METADATA": b"Name: onsight\n"}


def wheel(path, files, when=(2026, 1, 1, 0, 0, 0)):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, when), content)
    return path


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        ({"onsight/a.py": b"a = 2\n"}, ["onsight/a.py differs from git's version"]),
        ({"onsight/b.py": b""}, ["onsight/b.py is not in git"]),
    ],
)
def test_a_wheel_is_the_tree(tmp_path, change, fault):
    built = wheel(tmp_path / "x.whl", {**TREE, **METADATA, **change})
    assert CHECK["unlike_tree"](built, TREE) == fault


def test_a_wheel_that_lacks_a_file_or_its_metadata(tmp_path):
    built = wheel(tmp_path / "x.whl", {"onsight/__init__.py": b""})
    assert CHECK["unlike_tree"](built, TREE) == [
        "onsight/a.py is missing from the wheel",
        "the wheel has no METADATA",
    ]


def test_two_builds_are_the_same_to_the_byte(tmp_path):
    first = wheel(tmp_path / "1.whl", TREE)
    assert CHECK["differing"](first, wheel(tmp_path / "2.whl", TREE)) == []
    other = wheel(tmp_path / "3.whl", {**TREE, "onsight/a.py": b""})
    assert CHECK["differing"](first, other) == ["two builds differ in onsight/a.py"]
    later = wheel(tmp_path / "4.whl", TREE, (2026, 1, 2, 0, 0, 0))
    assert "times or order" in CHECK["differing"](first, later)[0]


@pytest.mark.parametrize("name", CHECK["PROJECTS"])
def test_the_tree_is_that_of_git(name):
    tree = CHECK["tracked"](CHECK["packed"](CHECK["PROJECTS"][name]))
    package = "onsight" if name == "onsight-run" else name.replace("-", "_")
    assert f"{package}/cli.py" in tree
    assert not any("__pycache__" in path for path in tree)
    bundled = {path for path in tree if not path.startswith(f"{package}/")}
    assert bool(bundled) == (name == "onsight-run")
    assert all(path.startswith("onsight_explain/") for path in bundled)


RELEASED = "# Changelog\n\n## Unreleased\n\n## 1.2.0 (2026-01-31)\n\n- News.\n"


@pytest.mark.parametrize(
    ("tag", "changelog", "faults"),
    [
        ("v1.2.0", RELEASED, []),
        ("1.2.0", RELEASED, ["a has version 1.2.0: the tag must be v1.2.0, not 1.2.0"]),
        (
            "v1.2.1",
            RELEASED,
            [
                "a has version 1.2.0: the tag must be v1.2.0, not v1.2.1",
                "CHANGELOG.md has no section '## 1.2.1 (YYYY-MM-DD)'",
            ],
        ),
        (
            "v1.2.0",
            RELEASED.replace("Unreleased\n", "Unreleased\n\n- More.\n"),
            ["CHANGELOG.md has entries under 'Unreleased': move them to the new section"],
        ),
    ],
)
def test_a_tag_names_the_version_and_its_section(tag, changelog, faults):
    assert CHECK["unlike_tag"](tag, {"a": "1.2.0"}, changelog) == faults


def test_every_package_has_a_version():
    found = CHECK["versions"]()
    assert set(found) == set(CHECK["PROJECTS"])
    assert len(set(found.values())) == 1
