"""What is installed is what was meant, and importing it does nothing behind one's back."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PIN = re.compile(
    r"^([a-z0-9][a-z0-9.-]*)==([^ ;\\]+)[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", re.M
)

WATCH = """
import sys
seen = []
kinds = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
harmless = "/sbin/ldconfig"  # what ctypes looks for a library with, when torch is loaded
def watch(event, args):
    if event.startswith(kinds) and args[0] != harmless:
        seen.append((event, str(args)))
sys.addaudithook(watch)
{}
assert not seen, seen
"""


def wanted():
    """Every requirement that the lock is made from: the project's, all's, and those of groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    extras = project["project"]["optional-dependencies"]
    (all_of_them,) = map(Requirement, extras["all"])
    chosen = [requirement for extra in all_of_them.extras for requirement in extras[extra]]
    groups = [name for group in project["dependency-groups"].values() for name in group]
    return [Requirement(requirement) for requirement in [*dependencies, *chosen, *groups]]


def locked():
    """The pinned version and the number of hashes of every locked package."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert len(PIN.findall(text)) == len(re.findall(r"^[a-z]", text, re.M)), "one without a hash"
    return {name: (version, hashes.count("--hash")) for name, version, hashes in PIN.findall(text)}


def test_the_lock_holds_what_pyproject_asks_for_with_hashes():
    pins = locked()
    for requirement in wanted():
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in pins, f"{name} is not locked: make lock"
        assert requirement.specifier.contains(pins[name][0]), f"{name} {pins[name][0]}: make lock"


def run_watched(code):
    return subprocess.run(
        [sys.executable, "-c", WATCH.format(code)], capture_output=True, text=True, check=False
    )


def test_an_import_opens_no_socket_and_starts_no_process():
    done = run_watched(
        "import onsight, onsight.cli, onsight.config, onsight_explain.cli, onsight_lint.read_many\n"
        "for name in onsight.__all__: getattr(onsight, name)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", ["import socket; socket.socket()", "import os; os.system('')"])
def test_the_watch_sees_both(code):
    assert "AssertionError" in run_watched(code).stderr


def interpret(*packages, err=""):
    script = runpy.run_path(str(ROOT / "scripts" / "audit.py"))
    out = json.dumps({"dependencies": packages, "fixes": []}) if packages else ""
    return script["interpret"](out, err)


SOUND = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
UNASKED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([SOUND], 0, "1 of 1 locked packages"),
        ([SOUND, WEAK], 1, "b 2: CVE-1, fixed in 3"),
        ([SOUND, UNASKED], 3, r"only 1 of 2 .* \(not found\)"),
        ([], 3, "no response .*no route.* on a machine with network access"),
    ],
)
def test_an_audit_that_asked_nobody_is_no_clean_bill(packages, code, said):
    found, text = interpret(*packages, err="many lines\nno route")
    assert found == code
    assert re.search(said, text)
