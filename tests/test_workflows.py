"""The workflows of .github run what exists: make's targets, scripts, and supported Pythons."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
ADDED_LATER = {"docs"}  # by another change; to be emptied when it has landed


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(workflow):
    for job in workflow["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def test_there_are_two():
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(path):
    for command in commands(read(path)):
        words = command.split()
        if words[0] == "make":
            assert words[1] in TARGETS | ADDED_LATER
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file()
        elif words[0] not in ("tar", "gh"):
            assert (ROOT / words[0]).is_file()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_write_only_where_it_says_so(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {
        (name, permission)
        for name, job in workflow["jobs"].items()
        for permission, access in job.get("permissions", {}).items()
        if access == "write"
    }
    expected = {("publish", "id-token"), ("announce", "contents")}
    assert writing == (expected if path.name == "release.yml" else set())


def test_ci_covers_the_oldest_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = read(WORKFLOWS[0])["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={versions[0]}"


def test_nothing_is_published_before_it_was_tested():
    jobs = read(WORKFLOWS[1])["jobs"]
    assert [jobs[name].get("needs") for name in ("build", "test", "publish", "announce")] == [
        None,
        "build",
        "test",
        "publish",
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash(path):
    used = re.findall(r"uses: (.+)", path.read_text(encoding="utf-8"))
    loose = [name for name in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", name)]
    assert loose in ([], ["pypa/gh-action-pypi-publish@release/v1"])
