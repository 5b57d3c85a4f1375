"""The state that ranks and the command share: lines, losses, and the first failure."""

from types import SimpleNamespace

import pytest

from onsight.cluster import ranks
from onsight.cluster.job import ClusterFailed, JobFailure, JobState, make_ray_error, raise_failure
from onsight.cluster.ranks import describe_lost_rank


def test_lines_are_taken_once():
    state = JobState()
    state.add_line("a")
    state.add_line("b")
    assert state.take_lines() == ["a", "b"]
    assert state.take_lines() == []


def test_a_run_that_advances_may_be_lost_any_number_of_times():
    state = JobState()
    for checkpoint in range(20):
        state.start(2, f"checkpoint {checkpoint}")
        state.record_lost_rank(1, "its machine is gone")
    assert state.get_failure() is None


def test_a_run_that_does_not_advance_ends_with_the_last_reason():
    state = JobState()
    for number in range(3):
        assert state.get_failure() is None
        state.start(2, "the same")
        state.record_lost_rank(1, f"reason {number}")
    failure = state.get_failure()
    assert failure.exit_code == 1
    assert (
        "lost 3 times without a new checkpoint; the last time, rank 1 was lost: reason 2"
        in failure.message
    )


def test_a_line_names_the_checkpoint_that_a_run_continues_from():
    state = JobState()
    state.start(2, "")
    assert state.take_lines() == []
    state.start(1, "")
    state.start(2, "7")
    assert state.take_lines() == [
        "continuing with 1 rank from the beginning: there was no checkpoint",
        "continuing with 2 ranks from the last checkpoint",
    ]


def test_the_first_failure_counts_and_hides_the_losses_that_follow():
    state = JobState()
    state.fail("no such data", 2)
    state.fail("a rank was lost", 1)
    state.record_lost_rank(0, "gone")
    assert state.take_lines() == []
    assert state.get_failure() == JobFailure("no such data", 2)
    with pytest.raises(ClusterFailed, match="no such data") as error:
        raise_failure(state.get_failure())
    assert error.value.exit_code == 2
    raise_failure(None)


def test_ray_s_last_line_is_repeated():
    assert str(make_ray_error(RuntimeError("a\nb\n"))) == "Ray ended the work: b"
    assert str(make_ray_error(RuntimeError())) == "Ray ended the work: RuntimeError"


def test_a_lost_rank_is_named_with_its_process_and_machine():
    state = JobState()
    state.register_rank(0, "process 7 on a", "node a")
    state.register_rank(1, "process 8 on b", "node b")
    state.start(2, "")
    state.record_lost_rank(1, "its machine is gone")
    assert state.take_lines() == ["note: rank 1 (process 8 on b) was lost: its machine is gone"]
    assert state.nodes_of([1, 5]) == {"node b"}


def test_ranks_begin_again_once_ray_has_given_up_the_lost_machine(monkeypatch):
    looks = []

    def nodes():
        looks.append(1)
        return [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": len(looks) < 4}]

    slept = []
    monkeypatch.setattr(ranks.time, "sleep", slept.append)
    ray = SimpleNamespace(nodes=nodes)
    ranks.wait_until_noticed(ray, {"a", "b"}, {"b"})
    assert slept == [0.5, 0.5, 0.5, ranks._NOTICED_SECONDS]
    ranks.wait_until_noticed(ray, {"b"}, set())
    assert slept[4:] == [ranks._NOTICED_SECONDS]
    monkeypatch.setattr(ranks, "_DECLARED_LOST_SECONDS", 0.0)
    ranks.wait_until_noticed(ray, {"a"}, {"a"})  # alive: only its process did not answer
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
    said = describe_lost_rank({0: ended, 1: Unhealthy(gone)})
    assert said == (1, "It is dead because its node has died.")
    assert describe_lost_rank({0: ended}) == (0, "RankLost: rank 1 was lost")
    unavailable = Unhealthy(ActorUnavailableError("The actor f05f is unavailable: RpcError: ..."))
    assert describe_lost_rank({1: unavailable}) == (1, "Ray cannot connect to its process")
