"""Several ranks act as one: the same images, losses, weights and results as a single process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import ranked

from onsight.ranks.world import World, join


@pytest.fixture(scope="module")
def alone(build_once):
    def compute(folder):
        (folder / "result.json").write_text(json.dumps(ranked.everything(World())))

    return json.loads((build_once("ranks-1", compute) / "result.json").read_text())


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.soak)])
def shared(request, build_once):
    """The same under torchrun."""
    size = request.param

    def compute(folder):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command = [sys.executable, *launcher, ranked.__file__, str(folder / "result.json")]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
        assert done.returncode == 0, done.stderr

    found = json.loads((build_once(f"ranks-{size}", compute) / "result.json").read_text())
    assert found["size"] == size
    return found


# Batch norm's statistics are those of a part, and the images of a part depend on the number of
# ranks: such a run only has to succeed.
SAME = [case for case in ranked.CASES if case != "batch norm in parts"]


def test_every_step_has_the_images_and_the_loss_of_one_process(alone, shared):
    for case in SAME:
        mine, theirs = alone["trained"][case], shared["trained"][case]
        assert theirs["images"] == mine["images"], case
        assert theirs["losses"] == pytest.approx(mine["losses"], rel=1e-10), case


def test_the_watchdog_counts_forward_and_backward_of_every_step(shared):
    plain = shared["trained"]["plain"]
    assert plain["syncs"] == 2 * len(plain["losses"])


def test_the_steps_learn(alone):
    losses = alone["trained"]["plain"]["losses"]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])


def test_a_rank_without_a_image_in_a_part_stays_in_step(alone, shared):
    case = "batch norm in parts"
    assert shared["trained"][case]["images"] == alone["trained"][case]["images"]
    assert np.isfinite(shared["trained"][case]["losses"]).all()


def test_the_weights_are_those_of_one_process(alone, shared):
    for case in SAME:
        mine, theirs = alone["trained"][case]["weights"], shared["trained"][case]["weights"]
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            assert np.allclose(values, theirs[name], rtol=1e-10, atol=1e-10), (case, name)


def test_ranks_replay_the_same_steps_or_none(shared):
    trained = shared["trained"]
    assert trained["replayed"]["replays"] == 2 * 3  # in each epoch that follows the warm-up
    assert set(trained["replayed"]["refused"]) == {""}
    for case, reason in (
        ("recording fails on one rank", "cannot be recorded"),
        ("one rank cannot be recorded", "the network draws random numbers on the host"),
    ):
        others = ["another rank cannot record its steps"] * (shared["size"] - 1)
        assert trained[case]["refused"] == [*others, reason], case
        assert trained[case]["replays"] == 0


def test_batch_norm_over_ranks_of_a_cpu_is_not_compiled(shared):
    wanted = f"--compile on cannot be combined with --ranks {shared['size']} on a CPU"
    assert shared["refused"].startswith(wanted)


def test_recordings_are_freed_before_the_ranks_part(shared):
    assert shared["is_free"]


def test_ranks_that_record_leave_errors_of_nccl_to_the_watchdog(monkeypatch):
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.setenv(name, "1")
    join(None, ranked.CPU)
    assert os.environ[name] == "1"
    join(None, ranked.CPU, records=True)
    assert os.environ[name] == "0"


def test_every_image_is_evaluated_once_with_the_same_bits(alone, shared):
    for count in ranked.EVALUATED:
        mine, theirs = alone["evaluated"][str(count)], shared["evaluated"][str(count)]
        assert mine == theirs, count
        assert theirs["ids"] == list(range(count))
