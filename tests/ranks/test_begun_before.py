"""What a run is given when its ranks are started again: its folder has the rest."""

import json

import pytest

from onsight.config import fields_for_resume
from onsight.errors import RankLost
from onsight.ranks import launch


def test_only_what_may_differ_is_given_again():
    fields = {"epochs": 3, "image_size": "auto", "threads": 1, "model": "theirs:Net", "ranks": 2}
    assert fields_for_resume(fields) == {"threads": 1, "model": "theirs:Net", "ranks": 2}
    assert fields_for_resume({"model": "lenet", "epochs": 3}) == {}


@pytest.mark.parametrize("losses", [0, 1, 2, 3])
def test_a_lost_rank_is_replaced_as_often_as_asked(monkeypatch, tmp_path, losses):
    requests, said = [], []

    def once(request, ranks, run):
        requests.append(request)
        if len(requests) <= losses:
            raise RankLost(f"rank 1 was lost ({len(requests)}); the job was ended; a hint")

    monkeypatch.setattr(launch, "_launch_once", once)
    if losses > 2:
        with pytest.raises(RankLost, match=r"lost \(3\)"):
            launch.launch({"data": "x"}, 2, tmp_path, 2, said.append)
    else:
        launch.launch({"data": "x"}, 2, tmp_path, 2, said.append)
    assert len(requests) == min(losses, 2) + 1
    assert [bool(one.get("restarted")) for one in requests] == [False, True, True][: len(requests)]
    assert [line.partition(";")[0] for line in said] == [
        f"rank 1 was lost ({number})" for number in range(1, min(losses, 2) + 1)
    ]
    json.dumps(requests)


def test_a_users_mistake_is_not_repeated(monkeypatch, tmp_path):
    attempts = []

    def once(*arguments):
        attempts.append(1)
        raise launch.RankFailed("no such image", 2)

    monkeypatch.setattr(launch, "_launch_once", once)
    with pytest.raises(launch.RankFailed):
        launch.launch({}, 2, tmp_path, 3)
    assert len(attempts) == 1
