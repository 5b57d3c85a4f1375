"""The mirror for pre-commit installs the linter's version and runs a command that there is."""

import runpy
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LINTER = tomllib.loads((ROOT / "packages/onsight-lint/pyproject.toml").read_text())["project"]


def test_the_mirror_depends_on_this_version_of_the_linter_and_on_nothing_else(tmp_path):
    mirror = tmp_path / "new" / "mirror"
    write_mirror = runpy.run_path(str(ROOT / "scripts" / "pre_commit_mirror.py"))["write_mirror"]
    for _ in range(2):  # also over a former version
        assert write_mirror(mirror) == LINTER["version"]
    project = tomllib.loads((mirror / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == [f"onsight-lint=={LINTER['version']}"]
    assert project["version"] == LINTER["version"]
    assert f"rev: v{LINTER['version']}\n" in (mirror / "README.md").read_text(encoding="utf-8")
    (hook,) = yaml.safe_load((mirror / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == "onsight-lint"
    assert hook["entry"] in LINTER["scripts"]
    assert hook["language"] == "python"
    assert hook["types"] == ["python"]
    assert sorted(path.name for path in mirror.iterdir()) == [
        ".pre-commit-hooks.yaml",
        "LICENSE",
        "README.md",
        "pyproject.toml",
    ]
