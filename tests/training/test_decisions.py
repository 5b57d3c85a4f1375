"""The record of decisions survives a line that a full disk has cut short, and a forgery."""

import pytest
from pydantic import TypeAdapter

from onsight.errors import ConfigError
from onsight.training.decisions import ANSWER, COUNT, DECISIONS, Decisions, read_decisions
from onsight.training.pacers import SEGMENT

STEPS = TypeAdapter(dict[str, int])


@pytest.mark.parametrize("lost", [1, 12])
def test_what_follows_a_line_that_was_cut_short_is_kept(tmp_path, lost):
    before = Decisions(tmp_path, is_timed=True)
    before.record("segment 0", {"steps": 5})
    before.record("segment 1", {"steps": 6})
    path = tmp_path / DECISIONS
    path.write_bytes(path.read_bytes()[:-lost])
    resumed = Decisions(tmp_path, is_timed=True)
    assert resumed.decide("segment 1", lambda: {"steps": 7}, STEPS) == {
        "steps": 6 if lost == 1 else 7
    }
    assert resumed.decide("segment 2", lambda: {"steps": 8}, STEPS) == {"steps": 8}
    steps = [value["steps"] for value in read_decisions(tmp_path).values()]
    assert steps == [5, 6 if lost == 1 else 7, 8]


def test_the_copy_in_a_checkpoint_replaces_no_later_decision(tmp_path):
    decisions = Decisions(tmp_path, is_timed=True)
    decisions.record("segment 0", {"steps": 100})
    copy = {**decisions.values, "validation images": 7}
    decisions.record("segment 0", {"steps": 60})  # it ended early, then the run was killed
    resumed = Decisions(tmp_path, is_timed=True)
    resumed.update(copy)
    assert resumed.values == {"segment 0": {"steps": 60}, "validation images": 7}
    assert read_decisions(tmp_path) == resumed.values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (COUNT, "many"),
        (COUNT, -1),
        (ANSWER, [1]),
        (SEGMENT, {"steps": 1}),
        (SEGMENT, {"steps": 5, "position": 0, "total_steps": 0, "evaluate": 0}),
    ],
)
def test_a_record_that_somebody_has_changed_is_refused_by_name(tmp_path, kind, value):
    Decisions(tmp_path, is_timed=True).record("segment 0", value)
    changed = Decisions(tmp_path, is_timed=True)
    with pytest.raises(ConfigError, match="decisions.jsonl has been changed: .* 'segment 0'"):
        changed.decide("segment 0", lambda: None, kind)
