"""The cause found for planted traces and what-ifs."""

from dataclasses import replace

import pytest

from onsight_explain.delivery.fixed_script import list_cautions
from onsight_explain.diagnosis import explain
from onsight_explain.diagnosis.causes import find_cause, verdict
from onsight_explain.paired_timing import RatioInterval
from onsight_explain.process.bench import ScriptBench
from onsight_explain.process.processes import Processes
from onsight_explain.script.trace import ItemFacts, LoaderFacts, OptimizerFacts, Reads, Trace
from onsight_explain.search import SearchResult, TrialResult
from onsight_explain.search_table import describe_noise, noise_ratio
from onsight_explain.tracing.clock import PHASES
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import make_what_ifs

SITE = Site(file="/home/user/train.py", line=7)


def trace(workers=0, threads=2, item=None, **shares):
    phases = dict.fromkeys(PHASES, 0.0) | {name: 10.0 * share for name, share in shares.items()}
    loader = LoaderFacts(
        site=SITE,
        batch_size=32,
        workers=workers,
        is_pinned=False,
        is_persistent=False,
        is_shuffled=True,
        items=1000,
    )
    return Trace(
        ended="window",
        startup_seconds=3.0,
        seconds=10.0,
        steps=100,
        images=3200,
        phases=phases,
        loader=loader,
        item=item,
        batch_size=32,
        threads=threads,
        reads=[Reads(sites=[SITE], per_step=32)],
        graphs_kept=10,
        graphs_site=SITE,
        pageable_bytes_per_step=10**7,
    )


def item(**facts):
    plain = {
        "seconds": 0.002,
        "waiting_share": 0.0,
        "transform_share": 0.1,
        "is_random": False,
        "item_bytes": 3000,
    }
    return ItemFacts(**(plain | facts))


def tried(ratio, low=None, **changes):
    interval = RatioInterval(low or ratio, ratio, 2 * ratio, 3)
    return TrialResult(tuple(make_what_ifs(changes)), 320 * ratio, interval, "same")


def test_noise_does_not_flip_the_cause():
    """A lucky round beside one that is sure."""
    lucky, sure = tried(4.0, low=0.2, bf16=True), tried(2.0, low=1.9, batch_factor=8)
    assert find_cause(trace(**COMPUTES), [lucky, sure], None, cores=2).name == "small-batch"


def test_what_ifs_that_cannot_be_distinguished_count_together():
    one, two = tried(2.0, low=1.95, threads=1), tried(2.0, low=1.9, short_spin=True)
    other = tried(2.1, low=2.0, bf16=True)
    assert find_cause(trace(**COMPUTES), [other, one, two], None, cores=2).name == "threads"
    assert find_cause(trace(**COMPUTES), [other, one], None, cores=2).name == "precision"


def test_a_mistake_that_certainly_costs_time_comes_before_faster_arithmetic():
    """But not one whose gain is not shown, nor before what waits for images."""
    arithmetic = tried(2.0, low=1.8, bf16=True)
    sure, unsure = tried(1.3, low=1.15, no_grad=True), tried(1.3, low=1.05, no_grad=True)
    loading = tried(5.0, low=4.0, cache="items")
    assert find_cause(trace(**COMPUTES), [arithmetic, sure], None, cores=2).name == "no-grad"
    assert find_cause(trace(**COMPUTES), [arithmetic, unsure], None, cores=2).name == "precision"
    found = find_cause(trace(item=item(), **WAITS), [arithmetic, sure, loading], None, cores=2)
    assert found.name == "loader"


def test_fewer_workers_than_crowd_the_cores_come_before_larger_batches():
    """But not if fewer gained nothing, nor where there are cores for all."""
    crowded, larger = trace(workers=16, **COMPUTES), tried(1.6, low=1.5, batch_factor=4)
    sure, unsure = tried(1.3, low=1.2, workers=0), tried(1.3, low=0.9, workers=0)
    assert find_cause(crowded, [larger, sure], None, cores=2).name == "oversubscribed"
    assert find_cause(crowded, [larger, unsure], None, cores=2).name == "compute"
    assert find_cause(crowded, [larger, sure], None, cores=32).name == "compute"


def test_beside_other_work_a_gain_of_larger_batches_does_not_make_the_longest_phase_the_cause():
    larger = tried(1.6, low=1.5, batch_factor=4)
    found = find_cause(trace(**COMPUTES), [larger], None, cores=2, noise="it is busy")
    assert verdict(trace(**COMPUTES), found, larger, 1).startswith(
        "Too noisy to tell why; with batch 0 it is at least 1.50 times as fast, 1.50 to 3.20, 3 "
        "rounds; measure again when this machine is idle."
    )


WAITS = {"data": 0.8, "forward": 0.1, "backward": 0.1}
COMPUTES = {"data": 0.01, "forward": 0.3, "backward": 0.6, "optimizer": 0.09}


@pytest.mark.parametrize(
    ("facts", "what_if", "cause"),
    [
        ({"item": item(), **WAITS}, {"cache": "items"}, "loader"),
        ({"item": item(transform_share=0.9), **WAITS}, {"cache": "items"}, "slow-transform"),
        (
            {"item": item(transform_share=0.9, is_random=True), **WAITS},
            {"augment_batches": "cpu"},
            "augmentation",
        ),
        (
            {"item": item(transform_share=0.9, is_random=True), **WAITS},
            {"cache": "fixed"},
            "slow-transform",
        ),
        ({"item": item(transform_share=0.6), **WAITS}, {"cache": "items"}, "loader"),
        ({"item": item(waiting_share=0.8), **WAITS}, {"cache": "items"}, "disk"),
        ({"workers": 8, "item": item(), **WAITS}, {"workers": 0}, "oversubscribed"),
        (COMPUTES, {"bf16": True}, "precision"),
        (COMPUTES, {"batch_factor": 8}, "small-batch"),
        (COMPUTES, {"threads": 1}, "threads"),
        (COMPUTES, {"fused": True}, "optimizer"),
        (COMPUTES, {"channels_last": True}, "memory_format"),
        ({"other": 0.9, "forward": 0.1}, {"rare_reads": (7,)}, "sync"),
        ({"evaluation": 0.7, "forward": 0.3}, {"no_grad": True}, "no-grad"),
        ({"copy": 0.7, "forward": 0.3}, {"pin_memory": True}, "pageable-copy"),
    ],
)
def test_the_change_that_gained_most_names_the_cause(facts, what_if, cause):
    smaller = tried(1.06, threads=1) if "threads" not in what_if else tried(1.06, bf16=True)
    found = find_cause(trace(**facts), [smaller, tried(2.0, **what_if)], None, cores=2)
    assert found.name == cause


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (COMPUTES, "compute"),
        ({"other": 0.8, "forward": 0.2}, "other"),
        ({"item": item(waiting_share=0.9), **WAITS}, "disk"),
        ({"copy": 0.8, "forward": 0.2}, "pageable-copy"),
        ({"evaluation": 0.7, "forward": 0.3}, "no-grad"),
        ({"evaluation": 0.4, "forward": 0.6}, "compute"),
    ],
)
def test_if_nothing_helped_the_largest_phase_is_the_cause(facts, cause):
    assert find_cause(trace(**facts), [tried(1.01, bf16=True)], None, cores=2).name == cause


def test_without_a_gain_or_a_part_of_half_the_time_all_parts_are_listed():
    seen = trace(data=0.4, other=0.31, forward=0.1, backward=0.1, optimizer=0.09)
    cause = find_cause(seen, [tried(1.01, bf16=True)], None, cores=2)
    assert cause.name == "spread"
    assert cause.sentence == (
        "no part takes half of the time: 40.0% is waiting for the loader, 31.0% is Python between "
        "torch's calls, 29.0% is the network computing"
    )


def test_a_change_that_is_not_shown_to_help_is_no_cause():
    """It may be luck: 1.01 to 1.18 times as fast with one thread names no threads."""
    seen = trace(data=0.4, other=0.31, forward=0.1, backward=0.1, optimizer=0.09)
    lucky = tried(1.18, low=1.01, threads=1)
    assert find_cause(seen, [lucky], lucky, cores=2).name == "spread"
    proven = tried(1.15, low=1.12, threads=1)
    assert find_cause(seen, [lucky], proven, cores=2).name == "threads"


def test_the_proven_winner_comes_before_a_surer_smaller_gain():
    seen = trace(workers=8, item=item(), data=0.4, forward=0.3, backward=0.3)
    once, larger = tried(2.5, low=0.1, workers=0), tried(1.37, low=1.2, batch_factor=4)
    proven = tried(2.2, low=1.8, workers=0)
    assert find_cause(seen, [once, larger], proven, cores=2).name == "oversubscribed"
    together = tried(2.2, low=1.8, workers=0, bf16=True)
    assert find_cause(seen, [once, larger], together, cores=2).name == "oversubscribed"
    assert find_cause(seen, [once, larger], None, cores=2).name == "compute"


@pytest.mark.parametrize(
    ("low", "cause"), [(1.4, "compute"), (1.59, "compute"), (1.61, "small-batch")]
)
def test_larger_batches_are_the_cause_if_half_of_a_step_does_not_grow_with_them(low, cause):
    """In batches four times as large, a step half of which is fixed takes 2.5 times as long."""
    larger = tried(low, batch_factor=4)
    assert find_cause(trace(**COMPUTES), [larger], larger, cores=2).name == cause


HOST_WAITS = {"sync": 0.9, "forward": 0.05, "other": 0.05}  # for an accelerator


@pytest.mark.parametrize(
    ("host", "device", "cause"),
    [
        (HOST_WAITS, {"forward": 0.5, "backward": 1.0, "sync": 0.01, "data": 0.1}, "compute"),
        ({"other": 0.9, "forward": 0.1}, {"forward": 1.0, "backward": 1.4}, "compute"),
        (HOST_WAITS, {"copy": 2.0, "forward": 0.4}, "pageable-copy"),
        ({"data": 0.8, "forward": 0.2}, {"data": 0.1, "backward": 2.4}, "compute"),
        ({"forward": 0.9, "data": 0.1}, {"data": 2.0, "forward": 0.4}, "loader"),
        ({"other": 0.9, "forward": 0.1}, {}, "other"),  # nothing was marked
    ],
)
def test_an_accelerators_own_phases_show_what_a_waiting_host_waits_for(host, device, cause):
    seen = replace(trace(item=item(), **host), device_phases=device)
    assert find_cause(seen, [], None, cores=2).name == cause


def test_many_workers_are_not_the_cause_if_fewer_do_not_help():
    found = find_cause(trace(workers=8, item=item(), **WAITS), [tried(3.0, cache="items")], None, 2)
    assert found.name == "loader"


def test_an_evaluation_that_builds_graphs_is_mentioned_beside_a_larger_cause():
    seen = trace(evaluation=0.5, forward=0.5)
    best = tried(2.0, channels_last=True)
    cause = find_cause(seen, [best], None, cores=2)
    told = "Besides, its evaluation (50.0% of the time) builds graphs"
    assert told in verdict(seen, cause, best, 1)
    spared = replace(seen, graphs_kept=0)
    assert told not in verdict(spared, cause, best, 1)


def test_the_verdict_is_one_sentence_with_both_speeds():
    seen = replace(trace(item=item(), **WAITS), graphs_kept=0)
    best = tried(2.5, low=2.4, cache="items")
    cause = find_cause(seen, [best], None, cores=2)
    assert verdict(seen, cause, best, 1) == (
        "80.0% of the time is spent waiting for the loader: reading and decoding an item takes "
        "2.00 ms, in the training process; with items cached in memory it is at least 2.4 times "
        "as fast, 2.4 to 5.0, 3 rounds."
    )
    unsure = tried(2.5, low=1.05, cache="items")
    doubt = verdict(seen, cause, unsure, 3)
    assert "; nothing was shown to make it faster: with items cached in memory, the best" in doubt
    assert doubt.endswith("3 rounds (below 1.10, noise could explain it).")
    assert verdict(seen, cause, None, 3).endswith("; none of 3 changes made it 5% faster.")
    assert "in memory, the only change tried, it is" in verdict(seen, cause, unsure, 1)
    assert verdict(seen, cause, None, 1).endswith("only change tried did not make it 5% faster.")
    assert verdict(seen, cause, None, 0).endswith("in the training process.")


def test_what_noise_may_hide_is_not_named():
    """Not even a phase that takes nearly all of the time; but a gain that is shown is."""
    cause = find_cause(trace(**COMPUTES), [tried(1.01, bf16=True)], None, 2, noise="a reason")
    assert cause.name == "noise"
    told = "Too noisy to tell: a reason; measure again when this machine is idle."
    assert verdict(replace(trace(**COMPUTES), graphs_kept=0), cause, None, 1) == told
    shown = tried(2.0, bf16=True)
    assert find_cause(trace(**COMPUTES), [shown], shown, 2, noise="a reason").name == "precision"


@pytest.mark.parametrize(
    ("waiting", "control", "is_busy", "cause"),
    [
        (0.70, [0.6, 1.9], False, "loader"),  # 2.3 times the rest; noise explains 1.9 times
        (0.64, [0.6, 1.9], False, "noise"),  # 1.8 times
        (0.70, [1.0], True, "loader"),  # other work halves the speed of what it runs beside
        (0.64, [1.0], True, "noise"),
    ],
)
def test_waiting_that_noise_cannot_explain_is_the_cause_but_no_gain_is_claimed(
    waiting, control, is_busy, cause
):
    seen = replace(trace(item=item(), data=waiting, forward=1 - waiting), graphs_kept=0)
    unsure = tried(1.5, low=0.9, workers=2)
    found = SearchResult([unsure], unsure, [100.0], [], control)
    noise = describe_noise(found, is_busy)
    named = find_cause(seen, [unsure], unsure, 2, noise, noise_ratio(found, is_busy))
    assert named.name == cause
    if cause == "loader":
        assert verdict(seen, named, unsure, 1) == (
            "70.0% of the time is spent waiting for the loader: reading and decoding an item takes "
            "2.00 ms, in the training process; too noisy to tell what helps: "
            f"{noise}; measure again when this machine is idle."
        )


@pytest.mark.parametrize(
    ("control", "is_busy", "told"),
    [
        ([0.98, 1.02, 1.05], False, ""),
        ([0.6, 1.02, 1.9], False, "0.60 to 1.90 times as fast as itself"),
        ([0.7], False, "was 0.70 times as fast as itself"),
        ([0.98, 1.02, 1.05], True, "other work keeps this machine busy"),
    ],
)
def test_noise_is_told_from_the_control_and_from_other_work(control, is_busy, told):
    found = SearchResult([tried(1.01, bf16=True)], None, [100.0], [], control)
    assert told in describe_noise(found, is_busy)
    assert bool(told) == bool(describe_noise(found, is_busy))


def test_larger_batches_are_recommended_with_their_learning_rate():
    seen = replace(trace(**COMPUTES), optimizer=OptimizerFacts("SGD", SITE, False))
    (caution,) = list_cautions(make_what_ifs({"batch_factor": 16, "bf16": True}), seen)
    assert "up to 16 times as much for SGD" in caution
    assert "accuracy, which was not measured" in caution
    adam = replace(seen, optimizer=OptimizerFacts("Adam", SITE, False))
    assert "4 times as much for Adam" in list_cautions(make_what_ifs({"batch_factor": 16}), adam)[0]


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [(False, False, "compute"), (True, False, "noise"), (False, True, "noise")],
)
def test_other_work_before_or_after_the_search_is_noise(
    tmp_path, monkeypatch, before, after, cause
):
    script, busy_benches = tmp_path / "train.py", []
    script.write_text("import torch\n")

    def candidates(bench, plain):
        busy_benches.append(bench.is_busy)
        return make_what_ifs({"bf16": True})

    found = SearchResult([tried(1.01, bf16=True)], None, [100.0], [], [1.0])
    monkeypatch.setattr(Processes, "__enter__", lambda processes: processes)
    monkeypatch.setattr(ScriptBench, "watch", lambda *_: (trace(**COMPUTES), None))
    monkeypatch.setattr(ScriptBench, "candidates", candidates)
    monkeypatch.setattr(explain.Search, "run", lambda search, changes: found)
    monkeypatch.setattr(explain, "warn_if_busy", lambda messages: before)
    monkeypatch.setattr(explain, "is_busy", lambda: after)
    assert explain.explain_script(script, []).cause.name == cause
    assert busy_benches == [before]
