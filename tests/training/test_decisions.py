"""The record of decisions survives a line that a full disk has cut short."""

import pytest

from onsight.training.decisions import DECISIONS, Decisions, read_decisions


@pytest.mark.parametrize("lost", [1, 12])
def test_what_follows_a_line_that_was_cut_short_is_kept(tmp_path, lost):
    before = Decisions(tmp_path, is_timed=True)
    before.record("segment 0", {"steps": 5})
    before.record("segment 1", {"steps": 6})
    path = tmp_path / DECISIONS
    path.write_bytes(path.read_bytes()[:-lost])
    resumed = Decisions(tmp_path, is_timed=True)
    assert resumed.decide("segment 1", lambda: {"steps": 7}) == {"steps": 6 if lost == 1 else 7}
    assert resumed.decide("segment 2", lambda: {"steps": 8}) == {"steps": 8}
    steps = [value["steps"] for value in read_decisions(tmp_path).values()]
    assert steps == [5, 6 if lost == 1 else 7, 8]
