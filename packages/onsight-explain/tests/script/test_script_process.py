"""A script run in its own process: observed, limited, unchanged, and reported when it fails."""

import os
import signal
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from onsight_explain.errors import ScriptFailed
from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.caching import Cache

pytestmark = pytest.mark.usefixtures("forked")

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import neighbour

def main():
    data = TensorDataset(torch.randn(256, 3), torch.zeros(256, dtype=torch.long))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    net = neighbour.make()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(int(sys.argv[1])):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
    print("the end", flush=True)
    open("result.txt", "w").write("saved")

if __name__ == "__main__":
    main()
"""
NEIGHBOUR = "from torch import nn\ndef make(): return nn.Linear(3, 2)\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    (path.parent / "neighbour.py").write_text(NEIGHBOUR, encoding="utf-8")
    return path


@contextmanager
def started(script, *args, limit=60.0):
    with Processes(script, list(args), 10**9, limit) as processes:
        processes.prepare(is_late=False)
        yield processes


def run(script, *args, seconds=0.3, limit=60.0, is_full=False):
    with started(script, *args, limit=limit) as processes:
        return processes.start(seconds=seconds, is_full=is_full).trace()


def test_a_script_is_observed_and_killed_before_it_can_save(script, monkeypatch):
    monkeypatch.chdir(script.parent)
    trace = run(script, "1000000", is_full=True)
    assert trace.ended == "window"
    assert trace.images == 8 * trace.steps > 0
    assert sum(trace.phases.values()) == pytest.approx(trace.seconds, rel=1e-3)
    assert trace.flops == 3 * 2 * 8 * 3 * 2 - 2 * 8 * 3 * 2  # no gradient for the images
    assert (trace.loader.batch_size, trace.loader.items, trace.loader.site.line) == (8, 256, 10)
    assert (trace.optimizer.name, trace.optimizer.site.line) == ("SGD", 12)
    assert trace.forward_site.line == 16
    assert sorted(path.name for path in script.parent.iterdir()) == ["neighbour.py", "train.py"]


def test_a_script_that_ends_early_is_reported_up_to_its_end(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    epochs = "for epoch in range(int(sys.argv[1])):"
    text = SCRIPT.replace(epochs, "while time.monotonic() < begun[0] + 0.5:")
    text = text.replace("import sys\n", "import time\nbegun = [float('inf')]\n")
    first = "optimizer.step()\n            begun[0] = min(begun[0], time.monotonic())\n"
    script.write_text(text.replace("optimizer.step()\n", first), encoding="utf-8")
    trace = run(script, seconds=100.0)
    assert trace.ended == "script"
    assert trace.steps > 20


def test_a_failing_script_shows_its_own_traceback(script):
    with pytest.raises(ScriptFailed) as failure:
        run(script, "many")
    words = str(failure.value)
    assert words.startswith("Traceback (most recent call last):")
    assert words.endswith("ValueError: invalid literal for int() with base 10: 'many'")
    assert str(script) in words
    assert "onsight" not in words.replace(str(script.parent), "")


def test_a_script_that_never_trains_is_ended_in_time(script):
    script.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    begun = time.monotonic()
    trace = run(script, limit=1.0)
    assert (trace.ended, trace.images) == ("limit", 0)
    assert time.monotonic() - begun < 60


def test_a_cache_that_takes_too_long_to_fill_holds_a_part(script):
    """All items would take 20 s; the first step is waited for 6."""
    slow = (
        "class Slow(TensorDataset):\n"
        "    def __getitem__(self, index):\n"
        "        __import__('time').sleep(20 / 256)\n"
        "        return super().__getitem__(index)\n\n"
        "def main():\n    data = Slow("
    )
    text = SCRIPT.replace("def main():\n    data = TensorDataset(", slow)
    script.write_text(text, encoding="utf-8")
    with started(script, "1000000") as processes:
        trace = processes.start([Cache("items")], 0.3, first_limit_seconds=6.0).trace()
    assert (trace.ended, len(trace.notes)) == ("window", 1)
    assert trace.notes[0].endswith("of 256 items, chosen at random")


def test_a_dataset_made_after_the_first_step_is_cached_as_a_whole(script):
    """Each epoch makes a new one, also when the time to wait for the first step has passed."""
    lines = SCRIPT.splitlines(keepends=True)
    made = [line for line in lines if line.startswith(("    data =", "    loader ="))]
    text = "".join(line for line in lines if line not in made)
    each_epoch = textwrap.indent("".join(made), "    ") + "        for images"
    script.write_text(text.replace("        for images", each_epoch), encoding="utf-8")
    with started(script, "1000000") as processes:
        process = processes.start([Cache("items")], 0.2, first_limit_seconds=5.0)
        process.trace()
        time.sleep(5.0)
        trace = process.measure(0.2, None)
    assert trace.images == 8 * trace.steps > 0


def test_processes_started_by_the_script_end_with_it(script, tmp_path):
    told = tmp_path / "child"
    script.write_text(
        f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(told)!r}, 'w').write(str(child.pid))\nraise SystemExit(1)\n",
        encoding="utf-8",
    )
    with pytest.raises(ScriptFailed, match="sys.exit"):
        run(script)
    assert _is_gone(int(told.read_text()))


def test_an_interrupt_ends_the_script(script, tmp_path):
    told = tmp_path / "pid"
    script.write_text(
        f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n",
        encoding="utf-8",
    )

    def interrupt():
        limit = time.monotonic() + 60
        while not (told.exists() and told.read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def explain():
        with started(script, limit=500.0) as processes:
            running = processes.start()
            threading.Thread(target=interrupt).start()
            running.trace()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            explain()
    finally:
        signal.signal(signal.SIGINT, before)
    assert _is_gone(int(told.read_text()))


def _is_gone(pid):
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
