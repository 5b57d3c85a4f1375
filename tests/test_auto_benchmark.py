"""The measurement of `--model auto` (benchmarks/auto.py): its tables against numbers by hand."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import auto
from auto_summary import compare, summarize
from contenders import Outcome
from harness import run_json

BENCHMARKS = Path(auto.__file__).parent
MB = 2**20


def line(dataset, contender, correct, seconds=27.0, peak=100, error=""):
    return {
        "tree": "0123456789",
        "dataset": dataset,
        "budget": 30.0,
        "seed": 1,
        "contender": contender,
        "seconds": seconds,
        "peak_bytes": peak * MB,
        "images": len(correct.replace("-", "")),
        "correct": correct,
        "error": error,
        "circumstances": "a machine",
    }


def test_the_tables_say_what_can_be_computed_by_hand():
    """Of ten images, 3 are right for auto alone in A and 1 for sprint alone; 1 in B for the head.

    A lead of d with m images right for one only has a standard error of sqrt(m - 10 d^2) / 10.
    """
    lines = [
        line("A", "auto", "1111111000", peak=300),
        line("A", "sprint", "1111000100", peak=250),
        line("A", "compact", "", error="exit code 2: error: too | short"),
        line("A", "head", "1000000000"),
        line("B", "auto", "1111000000", seconds=33.0, peak=300),
        line("B", "sprint", "", error="killed"),
        line("B", "head", "1111100000", peak=200),
    ]
    assert summarize(lines)[2:-1] == [
        *("a machine", "", "### 30 seconds", ""),
        "| dataset | contender | accuracy | images | runs | seconds | memory | "
        "auto's lead in points (95% interval) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| A | auto | 70.00% | 10 | 1 | 27.0 (27.0) | 300 MB |  |",
        "| A | **sprint** | 50.00% | 10 | 1 | 27.0 (27.0) | 250 MB | +20.0 (-17.2 to +57.2) |",
        "| A | compact | 0.00%; failed, 1 of 1: exit code 2: error: too / short | 0 | 1 | "
        "27.0 (27.0) | 100 MB | +70.0 (+41.6 to +98.4) |",
        "| A | head | 10.00% | 10 | 1 | 27.0 (27.0) | 100 MB | +60.0 (+29.6 to +90.4) |",
        "| B | auto | 40.00% | 10 | 1 | 33.0 (33.0) | 300 MB |  |",
        "| B | sprint | 0.00%; failed, 1 of 1: killed | 0 | 1 | 27.0 (27.0) | 100 MB | "
        "+40.0 (+9.6 to +70.4) |",
        "| B | **head** | 50.00% | 10 | 1 | 27.0 (27.0) | 200 MB | -10.0 (-28.6 to +8.6) |",
        "",
        "- auto loses more than one point to the best alternative in 1 cell of 2: "
        "B in 30 s (head, -10.0 (-28.6 to +8.6)).",
        "- auto used 90% to 110% of its budget, 100% in the median; 1 of 2 runs took longer.",
        "- auto's peak memory is 1.35 times that of the largest alternative in the cell's median, "
        "1.50 at most (B in 30 s).",
        "",
        "| alternative | cells | with a failed run | mean accuracy | "
        "auto's mean lead in points | where no run failed |",
        "| --- | --- | --- | --- | --- | --- |",
        "| head | 2 | 0 | 30.00% | +25.0 | +25.0 |",
        "| sprint | 2 | 1 | 25.00% | +30.0 | +20.0 |",
        "| compact | 1 | 1 | 0.00% | +70.0 |  |",
        "",
    ]


def test_a_repeated_seed_makes_a_lead_no_surer():
    ours, theirs = line("A", "auto", "1111111000"), line("A", "sprint", "1111000100")
    once = compare({1: ours}, {1: theirs, 4: theirs})
    assert compare({1: ours, 2: ours}, {1: theirs, 2: theirs}) == pytest.approx(once)


def test_only_images_that_both_held_out_are_compared():
    ours, theirs = line("A", "auto", "11-0-"), line("A", "sprint", "0-11-")
    assert compare({1: ours}, {1: theirs}).points == pytest.approx(100 * (1 - 1) / 2)
    assert compare({1: line("A", "auto", "1--")}, {1: line("A", "sprint", "-11")}) is None


def test_an_image_has_its_place_whether_or_not_it_was_held_out(tmp_path):
    for name in ("train/a/1.png", "test/b/1.png", "test/a/2.png", "test/a/1.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    paths = auto.list_images(tmp_path)
    assert auto.encode({"test/b/1.png": True, "test/a/1.png": False}, paths) == "0-1"
    assert auto.encode({"test/1": True, "test/0": False}, paths) == "---01"
    assert auto.encode({}, paths) == ""


def test_what_is_in_the_file_is_not_run_again(tmp_path, monkeypatch):
    (tmp_path / "A").mkdir()
    begun = []

    def run_contender(name, data, budget, seed, words):
        begun.append((seed, budget, name))
        return Outcome(1.0, MB, {"0.png": True})

    monkeypatch.setattr(auto, "run_contender", run_contender)
    out = tmp_path / "auto.jsonl"
    for seeds, names in (([1], ["auto", "head"]), ([1, 2], ["auto", "head", "tuned"])):
        auto.measure(tmp_path, list(auto.list_runs("tree", ["A"], [30, 60], seeds, names)), out)
    first, second = begun[:4], begun[4:]
    assert first == [(1, 30, "head"), (1, 30, "auto"), (1, 60, "head"), (1, 60, "auto")]
    assert second == [
        *((1, 30, "tuned"), (1, 60, "tuned")),
        *((2, budget, name) for budget in (30, 60) for name in ("tuned", "auto", "head")),
    ]
    lines = [json.loads(text) for text in out.read_text().splitlines()]
    assert [(found["seed"], found["budget"], found["contender"]) for found in lines] == begun
    assert {(found["images"], found["correct"]) for found in lines} == {(1, "1")}
    auto.measure(tmp_path, list(auto.list_runs("other", ["A"], [30], [1], ["auto"])), out)
    assert len(begun) == len(lines) + 1


@pytest.mark.parametrize(
    ("code", "limit", "expected"),
    [("held = b'x' * (100 << 20); raise SystemExit(3)", 60, 3), ("while True: pass", 0.5, None)],
)
def test_a_process_is_measured_whatever_its_parent_holds(tmp_path, code, limit, expected):
    """One holds 100 MB and one runs until its limit, while this process holds 300 MB."""
    held = b"x" * (300 * MB)
    command = (sys.executable, "-c", code)
    facts = run_json(
        *(sys.executable, BENCHMARKS / "measured_process.py", str(limit)),
        *(tmp_path / "out", tmp_path / "err", *command),
    )
    assert facts["code"] == expected
    assert facts["peak_bytes"] < len(held)
    if expected:
        assert facts["peak_bytes"] > 100 * MB
