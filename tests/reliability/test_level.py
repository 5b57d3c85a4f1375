"""Memory, file descriptors and threads do not grow over epochs and predictions."""

import functools
import json
import os
from pathlib import Path

import numpy as np
from tally import count
from trials import train

import onsight
from onsight_explain.threads import usable_cores

MIB = 2**20


def measure_resources():
    """Return (resident bytes, file descriptors, threads) of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tasks = len(os.listdir("/proc/self/task"))
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), tasks


def note_epochs(notes):
    """Record the resources after each epoch."""
    from onsight.training.trainer import Trainer

    real = Trainer._end_epoch

    def noted(self, images):
        real(self, images)
        self.checkpoints.wait()  # otherwise a checkpoint may be being written
        with open(notes, "a", encoding="utf-8") as file:
            file.write(json.dumps(measure_resources()) + "\n")

    Trainer._end_epoch = noted


def check_level(rows, settled, what):
    before, after = rows[settled], rows[-1]
    grown = (after[0] - before[0]) / MIB
    print(f"\n| {what} | {grown:.1f} MiB, {after[1] - before[1]} files, {after[2] - before[2]} |")
    assert grown <= 20
    assert after[1] == before[1]
    assert after[2] <= before[2] + usable_cores()  # a pool may start its last threads late


def test_epochs_leave_nothing_behind(shared_bars, tmp_path):
    epochs, notes = count(20, 6), tmp_path / "notes"
    prepare = functools.partial(note_epochs, notes)
    ended = train(shared_bars, tmp_path / "run", epochs=epochs, prepare=prepare)
    assert ended.code == 0, ended.output
    rows = [json.loads(line) for line in notes.read_text().splitlines()]
    assert len(rows) == epochs
    check_level(rows, 2, f"{epochs} epochs")


def test_predictions_leave_nothing_behind(undisturbed, shared_bars):
    predictor, total = onsight.load(undisturbed), count(20_000, 400)
    good = sorted(shared_bars.rglob("*.png"))[:18]
    contents = [path.read_bytes() for path in good]
    contents += [contents[0][:40], b"no image"]  # a tenth is bad
    rows = []
    for start in range(0, total, 20):
        rows_of_batch = list(predictor.predictions(contents))
        assert len(rows_of_batch) == 20
        assert sum(row.problem is not None for row in rows_of_batch) == 2
        if start % 200 == 0:
            rows.append(measure_resources())
    assert np.shape(rows)[1] == 3
    check_level([*rows, measure_resources()], len(rows) // 4, f"{total:,} predictions")
