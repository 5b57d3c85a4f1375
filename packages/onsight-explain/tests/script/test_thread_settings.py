"""Settings of threads, found in a script and its environment, and in force when torch loads."""

import ast
import os

import pytest
import torch

from onsight_explain.process.processes import Processes
from onsight_explain.script.thread_settings import (
    UNSET,
    follow_affinity,
    read_settings,
    read_variables,
    script_environment,
    script_spinning,
    settings_in,
    without_settings,
)
from onsight_explain.tracing.patches import Patches
from onsight_explain.what_ifs.what_if import make_what_ifs

SETS = """
import os
os.environ["GOMP_SPINCOUNT"] = "0"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.update({"GOMP_CPU_AFFINITY": "0", "HOME": "/"})
os.sched_setaffinity(0, {0})
import torch
os.environ["OMP_NUM_THREADS"] = "1"
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "train.py"
    path.write_text(SETS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("ours", "variables", "expected"),
    [
        ("2000", {}, "2000"),
        ("2000", {"GOMP_SPINCOUNT": "0"}, "0"),
        ("2000", {"OMP_WAIT_POLICY": "active"}, None),
        ("2000", {"OMP_WAIT_POLICY": UNSET}, "2000"),
        ("7", {"OMP_WAIT_POLICY": "active"}, "7"),
        ("7", {"GOMP_SPINCOUNT": UNSET}, None),
    ],
)
def test_the_choice_for_a_busy_machine_holds_unless_the_script_makes_its_own(
    monkeypatch, ours, variables, expected
):
    monkeypatch.setenv("GOMP_SPINCOUNT", ours)
    assert script_environment(variables).get("GOMP_SPINCOUNT") == expected


def test_what_a_script_sets_itself_is_not_announced_as_our_choice(script, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    assert not script_spinning(script)
    script.write_text("import torch\n", encoding="utf-8")
    assert script_spinning(script) == "GOMP_SPINCOUNT=2000"


def test_what_is_set_before_torch_is_found_with_its_lines(script):
    found = [(one.name, one.value, one.site.line) for one in settings_in(ast.parse(SETS), script)]
    assert found == [
        ("GOMP_SPINCOUNT", "0", 3),
        ("OMP_WAIT_POLICY", "passive", 4),
        ("GOMP_CPU_AFFINITY", "0", 5),
        ("os.sched_setaffinity", "{0}", 6),
    ]


def test_the_environment_is_named_unless_the_script_replaces_it(script, monkeypatch):
    environment = {"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "1", "PATH": "/bin"}
    rest = [
        (setting.name, setting.value)
        for setting in read_settings(script, environment)
        if not setting.site
    ]
    assert rest == [("KMP_BLOCKTIME", "1")]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # what setdefault leaves
    assert read_variables(script) == {"GOMP_SPINCOUNT": "0", "GOMP_CPU_AFFINITY": "0"}


def test_without_them_a_script_sets_nothing(script):
    tree = ast.parse(SETS.replace(', "HOME": "/"', ""))
    without_settings(tree)
    assert [one.name for one in settings_in(tree, script)] == ["os.sched_setaffinity"]


def test_a_script_with_a_syntax_error_sets_nothing(script):
    script.write_text("os.environ[", encoding="utf-8")
    assert read_variables(script) == {}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize(("text", "threads"), [(SETS, 1), (f"import torch\n{SETS}", 2)])
def test_bound_before_torch_there_are_as_many_threads_as_cores(monkeypatch, text, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    former, patches = torch.get_num_threads(), Patches()
    torch.set_num_threads(2)
    try:
        follow_affinity(ast.parse(text), patches)
        os.sched_setaffinity(0, {0})
        assert torch.get_num_threads() == threads
    finally:
        patches.undo()
        torch.set_num_threads(former)


TRAINS = """
import os
os.environ["GOMP_SPINCOUNT"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"
import torch
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(10**7):
    net(torch.zeros(4, 2) + torch.get_num_threads()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_scripts_process_has_them_from_its_start_and_a_what_if_takes_them_away(script):
    script.write_text(TRAINS, encoding="utf-8")
    cores = min(2, torch.get_num_threads())
    with Processes(script, [], 10**9, 60.0) as processes:
        processes.prepare(is_late=False)
        assert processes.start((), 0.1).trace().threads == 1
        changed = make_what_ifs({"thread_settings": True})
        assert processes.start(changed, 0.1).trace().threads >= cores
