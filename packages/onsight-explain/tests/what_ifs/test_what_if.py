"""All what-ifs together: names, order, and torch restored afterwards."""

import pytest
import torch
from torch.utils.data import DataLoader

from onsight_explain import what_ifs
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.script.trace import RunRequest, ThreadSetting
from onsight_explain.tracing.clock import PHASES
from onsight_explain.what_ifs.what_if import all_kinds, choose_what_ifs, make_what_ifs

SPIN = ThreadSetting(name="GOMP_SPINCOUNT", value="0", site=None)
WARP = """
from onsight_explain.what_ifs.what_if import Cause, WhatIf

class Warp(WhatIf):
    name, group, order, label = "warp", "warp", 12, "warp 9"
    candidates = classmethod(lambda cls, baseline: [])
    fixes = lambda self, trace: []
    cause = lambda self, trace: Cause("slow", "it is slow")
"""


def test_names_are_unique():
    names = [kind.name for kind in all_kinds()]
    assert len(set(names)) == len(names)


def test_a_new_file_is_all_it_takes(tmp_path, monkeypatch):
    (tmp_path / "warp.py").write_text(WARP)
    monkeypatch.setattr(what_ifs, "__path__", [*what_ifs.__path__, str(tmp_path)])
    all_kinds.cache_clear()
    try:
        found = [kind.name for kind in all_kinds()]
        assert found.index("workers") < found.index("warp") < found.index("augment_batches")
        assert make_what_ifs({"warp": 9})[0].value == 9
    finally:
        all_kinds.cache_clear()


def test_names_and_values_survive_json():
    changes = {"rare_reads": (3, 9), "cache": "items", "bf16": True, "workers": 1}
    request = RunRequest(
        script="train.py", args=[], seconds=1, steps=1, limit_seconds=1, out="out", changes=changes
    )
    read = from_json(RunRequest, to_json(request))
    assert make_what_ifs(read.changes) == make_what_ifs(changes)
    assert type(read.changes["workers"]) is int


def test_what_ifs_are_made_in_the_order_of_application():
    made = make_what_ifs({"bf16": True, "cache": "fixed", "augment_batches": "cpu"})
    assert [what_if.name for what_if in made] == ["augment_batches", "cache", "bf16"]
    with pytest.raises(KeyError):
        make_what_ifs({"magic": True})


def test_what_is_tried_for_a_plain_script(baseline):
    labels = [what_if.label for what_if in choose_what_ifs(baseline(shape=[3, 32, 32]))]
    assert sorted(labels) == [
        "1 thread",
        "1 worker",
        "2 workers",
        "4 threads",
        "4 workers",
        "batch 64",
        "bf16 autocast",
        "channels last",
        "items cached in memory",
        "short spin-waits of threads",
    ]


def test_what_could_save_most_is_tried_first(baseline):
    """A long evaluation: its graphs come before the loader, which is hardly waited for."""
    phases = dict.fromkeys(PHASES, 0.0) | {"evaluation": 7.0, "data": 2.0, "forward": 1.0}
    found = baseline(shape=[3, 32, 32], seconds=10.0, phases=phases, graphs_kept=1)
    labels = [what_if.label for what_if in choose_what_ifs(found)]
    assert labels.index("evaluation under no_grad") < labels.index("batch 64")
    assert labels.index("batch 64") < labels.index("1 worker")


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ({"graphs_kept": 1}, "evaluation under no_grad"),
        ({"loader": {"workers": 16}}, "0 workers"),
        ({"thread_settings": [SPIN]}, "default thread settings"),
    ],
)
def test_what_removes_a_fault_that_was_seen_comes_before_guesses(baseline, facts, first):
    phases = dict.fromkeys(PHASES, 0.0) | {"evaluation": 2.0, "data": 2.0, "forward": 6.0}
    labels = [what_if.label for what_if in choose_what_ifs(baseline(phases=phases, **facts))]
    assert labels[0] == first
    assert {"1 thread", "bf16 autocast"} < set(labels)


@pytest.mark.parametrize(
    ("item", "waits", "first"),
    [
        ({"transform_share": 0.9}, 0.8, "items cached in memory"),
        ({"waiting_share": 0.9}, 0.8, "items cached in memory"),
        ({"transform_share": 0.9, "is_random": True}, 0.8, "4 workers"),  # other items each epoch
        ({"transform_share": 0.1}, 0.8, "4 workers"),
        ({"transform_share": 0.9}, 0.4, "1 worker"),
    ],
)
def test_slow_work_that_gives_the_same_in_every_epoch_is_a_fault(baseline, item, waits, first):
    labels = [what_if.label for what_if in choose_what_ifs(baseline(item=item, waits=waits))]
    loading = ("items cached", "fixed transforms", "decoded files", "1 worker", "4 workers")
    assert next(label for label in labels if label.startswith(loading)) == first


def test_no_phase_waits_for_all_changes_of_a_longer_one(baseline):
    phases = dict.fromkeys(PHASES, 0.0) | {"forward": 5.5, "data": 3.8, "evaluation": 0.7}
    found = baseline(shape=[3, 32, 32], phases=phases, graphs_kept=1)
    labels = [what_if.label for what_if in choose_what_ifs(found)]
    named = ["channels last", "1 worker", "bf16 autocast", "2 workers", "evaluation under no_grad"]
    assert [label for label in labels if label in named] == named


def test_few_workers_cannot_make_up_for_a_long_wait(baseline):
    labels = [what_if.label for what_if in choose_what_ifs(baseline(waits=0.9))]
    assert labels.index("4 workers") < labels.index("2 workers") < labels.index("1 worker")
    assert labels.index("items cached in memory") < labels.index("2 workers")


def test_fewer_threads_come_late_where_steps_are_long(baseline):
    phases = dict.fromkeys(PHASES, 0.0) | {"forward": 100.0}
    long = baseline(shape=[3, 32, 32], seconds=100.0, steps=100, phases=phases)
    labels = [what_if.label for what_if in choose_what_ifs(long)]
    assert labels.index("channels last") < labels.index("1 thread")
    assert labels.index("bf16 autocast") < labels.index("short spin-waits of threads")
    assert labels.index("bf16 autocast") < labels.index("batch 64")
    short = baseline(shape=[3, 32, 32], seconds=1.0, steps=100, phases=phases | {"forward": 1.0})
    labels = [what_if.label for what_if in choose_what_ifs(short)]
    assert labels.index("1 thread") < labels.index("bf16 autocast")


def test_everything_is_restored(apply):
    before = DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__
    hooks = apply(threads=1, fused=True, workers=1, bf16=True)
    assert before[0] is not DataLoader.__init__
    hooks.patches.undo()
    assert before == (DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__)
