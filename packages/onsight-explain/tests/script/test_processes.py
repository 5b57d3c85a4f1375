"""Processes that run a script: forked where it can be, stopped between windows, all ended."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from onsight_explain.errors import ScriptFailed
from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.what_if import make_what_ifs

SCRIPT = """
import sys
import tempfile
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
tempfile.mkstemp(dir=sys.argv[1])
numbers = open(__file__)  # a place in a file, which forked processes must not share
numbers.read(10)
{before}
data = TensorDataset(torch.randn(256, 3), torch.zeros(256, dtype=torch.long))
loader = DataLoader(data, batch_size=8, shuffle=True)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
assert numbers.read(4) == open(__file__).read()[10:14]
while True:
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        {after}
"""


def processes_in(folder, before="", after="pass"):
    """The processes of the script in a folder; before, after: lines put into it."""
    script, read = folder / "train.py", folder / "read"
    script.write_text(SCRIPT.replace("{before}", before).replace("{after}", after))
    read.mkdir(exist_ok=True)
    return Processes(script, [str(read)], 10**9, 60.0)


@pytest.fixture
def processes(tmp_path, forked):
    """A function that starts the script's processes until the test ends, as `processes_in`."""
    with ExitStack() as opened:

        def make(before="", after="pass"):
            made = opened.enter_context(processes_in(tmp_path, before, after))
            made.prepare(is_late=True)
            return made

        yield make


def reads(tmp_path):
    return len(list((tmp_path / "read").iterdir()))


def is_stopped(process):
    """Whether a process that was measured does nothing, a moment later."""
    stat = Path(f"/proc/{process.leader}/stat")
    end = time.monotonic() + 10
    while stat.read_text().rpartition(")")[2].split()[0] != "T" and time.monotonic() < end:
        time.sleep(0.01)
    return time.monotonic() < end


def test_what_a_script_reads_is_read_once_and_its_losses_are_the_same(processes, tmp_path):
    script = processes()
    plain = script.start(seconds=0.1, is_full=True)
    first = plain.trace()
    assert is_stopped(plain)
    changed = script.start(make_what_ifs({"fused": True, "threads": 2}), 0.1).trace()
    assert reads(tmp_path) == 1
    assert changed.optimizer.is_fused
    assert (first.threads, changed.threads) == (1, 2)
    assert changed.losses[:3] == pytest.approx(first.losses[:3], rel=1e-4)
    assert (first.loader.batch_size, first.loader.site.line) == (8, 14)
    again = plain.measure(0.1)  # goes on where it was
    assert again.images == 8 * again.steps > 0
    assert sum(again.phases.values()) == pytest.approx(again.seconds, rel=1e-3)


# Nobody sees them being started, so the script cannot be forked later.
NINE_THREADS = """
import _thread, time
for _ in range(9):
    _thread.start_new_thread(time.sleep, (99,))
"""


@pytest.mark.parametrize(
    ("before", "what_ifs", "count"),
    [
        pytest.param(NINE_THREADS, {}, 2, marks=pytest.mark.soak),
        # Its text is changed before it runs.
        pytest.param("", {"rare_reads": (1,)}, 2, marks=pytest.mark.soak),
        ("", {"short_spin": True}, 2),  # read when torch is loaded: a fresh process
    ],
)
def test_where_a_later_fork_is_not_possible_the_script_runs_from_its_start(
    processes, tmp_path, before, what_ifs, count
):
    trace = processes(before).start(make_what_ifs(what_ifs), 0.1).trace()
    assert trace.images > 0
    assert reads(tmp_path) == count


@pytest.mark.parametrize(
    ("thread", "more"),
    [
        ("threading.Timer(99, print)", 1),  # as loggers start one
        # As it may read images before the training.
        pytest.param("threading.Thread(target=print)", 0, marks=pytest.mark.soak),
    ],
)
def test_a_script_is_forked_before_a_thread_that_lasts_and_after_one_that_ends(
    processes, tmp_path, thread, more
):
    again = "thread.join(0.5); tempfile.mkstemp(dir=sys.argv[1])"
    script = processes(f"import threading; thread = {thread}; thread.start(); {again}")
    script.start(seconds=0.1, is_full=True).trace()
    before = reads(tmp_path)
    changed = script.start(make_what_ifs({"fused": True, "batch_factor": 2}), 0.1).trace()
    assert (changed.optimizer.is_fused, changed.loader.batch_size) == (True, 16)
    assert reads(tmp_path) == before + more


@pytest.mark.soak
def test_the_message_of_a_script_that_fails_beside_a_thread_is_its_own(processes):
    with pytest.raises(ScriptFailed, match="ZeroDivisionError"):
        processes("import threading; threading.Timer(99, print).start(); 1 / 0")


def test_the_message_of_a_script_that_fails_is_its_own(processes):
    with pytest.raises(ScriptFailed, match="ZeroDivisionError"):
        processes("1 / 0")
    late = processes(after="1 / 0").start(seconds=0.1)
    with pytest.raises(ScriptFailed, match=r"train.py.*\n.*1 / 0"):
        late.trace()


@pytest.mark.soak
def test_nothing_is_left_running_not_even_a_daemon(tmp_path):
    """A process that has left its group and session, as daemons do; as in test_bad_scripts."""
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    open({str(tmp_path / 'daemon')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    with processes_in(tmp_path, before=daemon) as processes:
        processes.prepare(is_late=True)
        processes.start(seconds=0.1).trace()
        pid = int((tmp_path / "daemon").read_text())
    assert is_gone(pid)


def is_gone(pid):
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False
