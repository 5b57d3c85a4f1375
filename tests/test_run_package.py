"""The small distribution holds the same package, and less of what it depends on."""

import tomllib
from pathlib import Path

from onsight.cli import _LEFT_OUT

_ROOT = Path(__file__).parents[1]


def _project(folder: str) -> dict:
    return tomllib.loads((_ROOT / folder / "pyproject.toml").read_text())["project"]


def _name(requirement: str) -> str:
    return requirement.partition(">")[0]


def test_its_dependencies_are_those_of_the_whole_but_for_what_it_leaves_out():
    whole, small = _project("."), _project("packaging/run")
    kept = {one for one in small["dependencies"] if _name(one) != "onnxruntime"}
    assert kept <= set(whole["dependencies"])
    left_out = {_name(one) for one in whole["dependencies"]} - {_name(one) for one in kept}
    assert left_out - {"tensorboard"} == _LEFT_OUT
    assert small["version"] == whole["version"]
    for extra, needs in small["optional-dependencies"].items():
        assert needs == whole["optional-dependencies"][extra]
