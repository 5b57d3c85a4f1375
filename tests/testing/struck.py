"""Runs of two ranks, struck by signals at planted instants, and what became of them.

The signals come from a user's network, whose module notes every completed step with its images
and strikes its own process: in a step, while evaluating after an epoch or judging at the end, or
while a checkpoint is being written.
"""

import json
import os
import signal
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from onsight.tensorfile import read_tensors

NETWORK = '''
import json, os, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from torch import nn
import onsight.files
from onsight.models.classic import LeNet
from onsight.training.checkpoint import Snapshot
from onsight.step.update import Update
from onsight.training.trainer import Trainer

NOTES = Path(os.environ["STRUCK"])
RANK = int(os.environ.get("RANK", 0))
FAULTS = json.loads((NOTES / "faults.json").read_text())
now = {"epoch": 0, "step": 0, "place": "step", "saved": [0, 0]}


def strike(place, epoch, step):
    for number, (where, rank, at_epoch, at_step, sent) in enumerate(FAULTS):
        if (where, rank, at_epoch, at_step) == (place, RANK, epoch, step):
            try:
                with open(NOTES / f"fault-{number}", "x") as file:
                    file.write(str(time.time()))
            except FileExistsError:
                continue
            os.kill(os.getpid(), sent)
            time.sleep(0.1)


def augment(self, batch, epoch, step):
    now.update(epoch=epoch, step=step, place="step", ids=batch.ids.tolist())
    return real_augment(self, batch, epoch, step)


def make(self, inputs, targets, global_labels):
    losses = real_make(self, inputs, targets, global_labels)
    if (NOTES / "slow").exists():
        time.sleep(0.25)
    with open(NOTES / f"steps-{os.getpid()}", "a") as file:
        row = [time.time(), now["epoch"], now["step"], now["ids"], self.step.world.size]
        file.write(json.dumps(row) + "\\n")
    return losses


def train(self):
    progress = real_train(self)
    now["place"] = "judging"
    if RANK > 0:
        strike("judging", 0, 0)
    return progress


def end_epoch(self, images):
    now.update(epoch=self.progress.epoch, place="evaluating")
    if RANK > 0:  # the few images are all on the first rank; the others wait for it
        strike("evaluating", now["epoch"], 0)
    real_end_epoch(self, images)


def write(self, path):
    if "progress" in self.facts:
        progress = self.facts["progress"]
        now["saved"] = [progress["epoch"], progress["step"]]
    real_write(self, path)


def fsync(descriptor):
    if threading.current_thread().name.startswith("checkpoints"):
        strike("saving", *now["saved"])
    real_fsync(descriptor)


def write_blank_report(run):
    (run / "report.html").touch()
    return run / "report.html"


# Importing what draws a report, and drawing it, takes seconds.
sys.modules["onsight.report.page"] = SimpleNamespace(write_report=write_blank_report)
real_augment, Update.augment = Update.augment, augment
real_make, Update.make = Update.make, make
real_train, Trainer.run = Trainer.run, train
real_end_epoch, Trainer._end_epoch = Trainer._end_epoch, end_epoch
real_write, Snapshot.write = Snapshot.write, write
real_fsync, onsight.files.os.fsync = os.fsync, fsync


class Precise(nn.Module):
    """In float64, where rounding that depends on the number of ranks makes no difference."""

    def __init__(self):
        super().__init__()
        self.net = LeNet((1, 16, 16), 2).double()

    def forward(self, images):
        logits = self.net(images.double())
        if self.training:
            strike("step", now["epoch"], now["step"])
        elif now["place"] == "evaluating":
            strike("evaluating", now["epoch"], 0)
        elif now["place"] == "judging":
            strike("judging", 0, 0)
        return logits
'''
WORDS = ["--model", "struck_net:Precise", "--folds", "1", "--threads", "1", "--image-size", "16"]
WORDS += ["--batch-size", "16", "--plan", "default"]


class Fault(NamedTuple):
    """A signal to a rank; epoch and step, from 0, are those of the step or of what is saved."""

    place: str
    rank: int
    epoch: int
    step: int
    signal: int = signal.SIGKILL


@dataclass
class Watched:
    """Lines of stderr with their times, and when it ended."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    ended: float = 0.0

    def read(self, stream):
        """Read to the end, in a thread."""

        def keep():
            for line in stream:
                self.lines.append((time.time(), line.rstrip()))
            self.ended = time.time()

        thread = threading.Thread(target=keep, daemon=True)
        thread.start()
        return thread

    @property
    def text(self):
        return "\n".join(line for _, line in self.lines)


@contextmanager
def network(folder, faults):
    """Make the network importable for processes started in the block; they note into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "struck_net.py").write_text(NETWORK)
    (folder / "faults.json").write_text(json.dumps([list(fault) for fault in faults]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("STRUCK", str(folder))
        yield


def struck_at(notes, number):
    """When a fault struck, in seconds; None if it has not."""
    file = notes / f"fault-{number}"
    return float(file.read_text()) if file.exists() else None


def steps_noted(notes):
    """[(time, epoch, step, ids, number of ranks, process)] of all ranks, in the order of time."""
    rows = []
    for file in notes.glob("steps-*"):
        process = int(file.name.partition("-")[2])
        rows += [(*json.loads(line), process) for line in file.read_text().splitlines()]
    return sorted(rows)


def recovered_after(notes, number, watched):
    """Seconds from a fault until new processes completed a step, or the run ended."""
    begun = struck_at(notes, number)
    rows = steps_noted(notes)
    before = {process for at, *_, process in rows if at <= begun}
    later = [at for at, *_, process in rows if at > begun and process not in before]
    return min([*later, watched.ended]) - begun


def noted_after(notes, number, watched):
    """Seconds from a fault until the launcher said which rank was lost, and what it said."""
    begun = struck_at(notes, number)
    for at, line in watched.lines:
        if at > begun and "started again" in line:
            return at - begun, line
    return None, ""


def check_images(notes, epochs):
    """Each epoch's images exactly once, and a repeated step has the same; returns the repeats.

    Whatever was repeated replaced what it repeated. Where a number of ranks completed a step only
    in part, another start of them has it whole.
    """
    shares = defaultdict(lambda: defaultdict(list))
    for _, epoch, step, ids, ranks, _ in steps_noted(notes):
        shares[epoch, step][ranks, tuple(ids)].append(1)
    seen = defaultdict(list)
    for (epoch, step), found in shares.items():
        batches = defaultdict(list)
        for ranks, ids in found:
            batches[ranks] += ids
        whole = set(max(batches.values(), key=len))
        for images in batches.values():
            assert len(images) == len(set(images)), (epoch, step)  # other shares would overlap
            assert set(images) <= whole, (epoch, step)
        seen[epoch] += whole
    assert sorted(seen) == list(range(epochs))
    for epoch, images in seen.items():
        assert sorted(images) == sorted(set(seen[0])), epoch
    return sum(_times(found) - 1 for found in shares.values())


def _times(found):
    """How often a step was completed, whatever the number of ranks."""
    times = defaultdict(int)
    for (ranks, _), rows in found.items():
        times[ranks] = max(times[ranks], len(rows))
    return sum(times.values())


def difference(one, other):
    """The greatest difference between the weights of two runs."""
    mine, theirs = (read_tensors(path / "model.safetensors")[0] for path in (one, other))
    assert mine.keys() == theirs.keys()
    return max(
        float((mine[name] - theirs[name]).abs().max()) for name in mine if _is_float(mine[name])
    )


def _is_float(tensor):
    return torch.is_floating_point(tensor)


def table(rows, columns):
    """A table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def run(folder, data, faults, epochs, *words, launched):
    """(exit code, lines, notes, run folder) of a run of two ranks with these faults.

    launched: the class that starts a command.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notes, out = folder / "notes", folder / "run"
    with network(notes, faults):
        command = [data, *WORDS, "--epochs", epochs, "--ranks", 2, "--out", out, *words]
        started = launched(folder, *command)
        watched = Watched()
        with started.process:  # closes its streams
            reading = watched.read(started.process.stderr)
            started.process.stdout.read()
            code = started.process.wait()
            reading.join()
    assert started.ranks() == {}
    return code, watched, notes, Path(out)
