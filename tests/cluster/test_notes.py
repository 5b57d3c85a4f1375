"""What ranks tell the command: lines, losses, and the first failure."""

from types import SimpleNamespace

import pytest

from onsight.cluster import trainer
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
        notes.lose(1, "its machine is gone")
    assert notes.why_failed() is None


def test_a_run_that_does_not_advance_ends_with_the_last_reason():
    notes = Notes()
    for number in range(3):
        assert notes.why_failed() is None
        notes.begin(2, "the same")
        notes.lose(1, f"reason {number}")
    failure = notes.why_failed()
    assert failure.exit_code == 1
    assert (
        "lost 3 times without a new checkpoint, last because rank 1 was lost: reason 2"
        in failure.message
    )


def test_the_user_hears_where_a_run_goes_on():
    notes = Notes()
    notes.begin(2, "")
    assert notes.take_lines() == []
    notes.begin(1, "")
    notes.begin(2, "7")
    assert notes.take_lines() == [
        "going on with 1 rank from the beginning: there was no checkpoint",
        "going on with 2 ranks from the last checkpoint",
    ]


def test_the_first_failure_counts_and_hides_the_losses_that_follow():
    notes = Notes()
    notes.fail("no such data", 2)
    notes.fail("a rank was lost", 1)
    notes.lose(0, "gone")
    assert notes.take_lines() == []
    assert notes.why_failed() == Failure("no such data", 2)
    with pytest.raises(ClusterFailed, match="no such data") as error:
        raise_failure(notes.why_failed())
    assert error.value.exit_code == 2
    raise_failure(None)


def test_ray_s_last_line_is_repeated():
    assert str(ended_by_ray(RuntimeError("a\nb\n"))) == "Ray ended the work: b"
    assert str(ended_by_ray(RuntimeError())) == "Ray ended the work: RuntimeError"


def test_a_lost_rank_is_named_with_its_process_and_machine():
    notes = Notes()
    notes.enter(0, "process 7 on a", "node a")
    notes.enter(1, "process 8 on b", "node b")
    notes.begin(2, "")
    notes.lose(1, "its machine is gone")
    assert notes.take_lines() == ["note: rank 1 (process 8 on b) was lost: its machine is gone"]
    assert notes.nodes_of([1, 5]) == {"node b"}


def test_ranks_begin_again_once_ray_has_given_up_the_lost_machine(monkeypatch):
    looks = []

    def nodes():
        looks.append(1)
        return [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": len(looks) < 4}]

    slept = []
    monkeypatch.setattr(trainer.time, "sleep", slept.append)
    ray = SimpleNamespace(nodes=nodes)
    trainer.wait_until_noticed(ray, {"a", "b"}, {"b"})
    assert slept == [0.5, 0.5, 0.5, trainer._LOOK_SECONDS]
    trainer.wait_until_noticed(ray, {"b"}, set())
    assert slept[4:] == [trainer._LOOK_SECONDS]
    monkeypatch.setattr(trainer, "_GIVEN_UP_SECONDS", 0.0)
    trainer.wait_until_noticed(ray, {"a"}, {"a"})  # alive: only its process did not answer
    assert len(slept) == 5


class ActorUnavailableError(Exception):
    """As Ray names it."""


class Unhealthy(Exception):
    def __init__(self, failure):
        super().__init__("A worker health check failed.")
        self.health_check_failure = failure


def test_the_rank_that_is_gone_is_named_rather_than_one_that_misses_it():
    gone = RuntimeError("The actor died.\n\tpid: 7\nIt is dead because its node has died.\n")
    ended = RuntimeError("Traceback:\n  file\nRankLost: rank 1 was lost")
    said = describe_loss({0: ended, 1: Unhealthy(gone)})
    assert said == (1, "It is dead because its node has died.")
    assert describe_loss({0: ended}) == (0, "RankLost: rank 1 was lost")
    unavailable = Unhealthy(ActorUnavailableError("The actor f05f is unavailable: RpcError: ..."))
    assert describe_loss({1: unavailable}) == (1, "Ray cannot connect to its process")
