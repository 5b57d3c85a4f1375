"""What ranks tell the command: lines, losses, and the first failure."""

import pytest

from onsight.cluster.notes import ClusterFailed, Failure, Notes, ended_by_ray, raise_failure
from onsight.cluster.trainer import describe_loss


def test_lines_are_taken_once():
    notes = Notes()
    notes.say("a")
    notes.say("b")
    assert notes.take_lines() == ["a", "b"]
    assert notes.take_lines() == []


def test_a_run_that_advances_may_be_lost_any_number_of_times():
    notes = Notes()
    for checkpoint in range(20):
        notes.begin(2, f"checkpoint {checkpoint}")
        notes.lose("rank 1 was lost")
    assert notes.why_failed() is None


def test_a_run_that_does_not_advance_ends_with_the_last_reason():
    notes = Notes()
    for number in range(3):
        assert notes.why_failed() is None
        notes.begin(2, "the same")
        notes.lose(f"reason {number}")
    failure = notes.why_failed()
    assert failure.exit_code == 1
    assert "lost 3 times without a new checkpoint, last because reason 2" in failure.message


def test_the_user_hears_where_a_run_goes_on():
    notes = Notes()
    notes.begin(2, "")
    assert notes.take_lines() == []
    notes.begin(1, "")
    notes.begin(2, "7")
    assert notes.take_lines() == [
        "going on with 1 of the ranks from the beginning: there was no checkpoint",
        "going on with 2 of the ranks from the last checkpoint",
    ]


def test_the_first_failure_counts_and_hides_the_losses_that_follow():
    notes = Notes()
    notes.fail("no such data", 2)
    notes.fail("a rank was lost", 1)
    notes.lose("rank 0 was lost")
    assert notes.take_lines() == []
    assert notes.why_failed() == Failure("no such data", 2)
    with pytest.raises(ClusterFailed, match="no such data") as error:
        raise_failure(notes.why_failed())
    assert error.value.exit_code == 2
    raise_failure(None)


def test_ray_s_last_line_is_repeated():
    assert str(ended_by_ray(RuntimeError("a\nb\n"))) == "Ray ended the work: b"
    assert str(ended_by_ray(RuntimeError())) == "Ray ended the work: RuntimeError"


class Unhealthy(Exception):
    def __init__(self, failure):
        super().__init__("A worker health check failed.")
        self.health_check_failure = failure


def test_the_rank_that_is_gone_is_named_rather_than_one_that_misses_it():
    gone = RuntimeError("The actor died.\n\tpid: 7\nIt is dead because its node has died.\n")
    ended = RuntimeError("Traceback:\n  file\nRankLost: rank 1 was lost")
    said = describe_loss({0: ended, 1: Unhealthy(gone)})
    assert said == "rank 1 was lost: It is dead because its node has died."
    assert describe_loss({0: ended}) == "rank 0 was lost: RankLost: rank 1 was lost"
