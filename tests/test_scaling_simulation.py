"""The simulation of large jobs (benchmarks/scaling.py) against closed forms."""

import math
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from scaling_events import Events, Shared, spread
from scaling_job import Job, daly_seconds, exponential, run_job, young
from scaling_steps import Exchange, Machine, Work, ring_seconds, simulate, unhidden

HOUR = 3600.0


def rate(work, ranks=1, machine=None, exchange=None, **options):
    machine = machine or Machine(cores=ranks, ranks=ranks)
    return simulate(machine, work, exchange or Exchange(), ranks, **options).images_per_second


def test_one_rank_is_as_fast_as_the_slowest_of_its_parts():
    """On a core for each thread, decoding and fetching go on beside the step."""
    machine = Machine(cores=8, ranks=1, link_bytes=1e6)
    for compute, decode, nbytes in ((0.5, 0.001, 100), (0.1, 0.01, 100), (0.1, 0.001, 8000)):
        work = Work(64, compute, decode_seconds=decode, decode_threads=2, image_bytes=nbytes)
        slowest = max(compute, 64 * decode / 2, 64 * nbytes / 1e6)
        assert rate(work, machine=machine) == pytest.approx(64 / slowest, rel=0.005)


def test_ranks_on_cores_of_their_own_add_the_all_reduce():
    speed = rate(Work(256, 0.04), ranks=16, exchange=Exchange(0.01))
    assert speed == pytest.approx(16 * 256 / 0.05)


@pytest.mark.parametrize(("ranks", "cores"), [(3, 2), (5, 2), (7, 4), (2, 2)])
def test_ranks_that_share_cores_take_their_turns(ranks, cores):
    machine = Machine(cores=cores, ranks=ranks)
    step = 0.04 * max(1, ranks / cores) + 0.001
    speed = rate(Work(256, 0.04), ranks, machine, Exchange(0.001))
    assert speed == pytest.approx(ranks * 256 / step)


def test_decoding_and_computing_on_one_core_add_up():
    work = Work(64, 0.04, decode_seconds=0.001)
    assert rate(work, machine=Machine(1, 1)) == pytest.approx(64 / 0.104, rel=0.005)


def test_places_where_ranks_wait_cost_their_own_exchange():
    speed = rate(Work(8, 0.1, waits=20), ranks=4, exchange=Exchange(0.01, 0.002))
    assert speed == pytest.approx(4 * 8 / (0.1 + 20 * 0.002 + 0.01))


def test_a_step_takes_as_long_as_its_slowest_rank():
    """The mean of the greatest of n log-normal times, by drawing them apart from the simulation."""
    work = Work(1, 1.0, deviation=0.2)
    normal = np.random.default_rng(1).standard_normal((20_000, 16))
    slowest = np.vectorize(lambda z: spread(1.0, 0.2, z))(normal.max(axis=1)).mean()
    assert 16 / rate(work, ranks=16, steps=2000) == pytest.approx(slowest, rel=0.01)
    assert rate(work, ranks=1, steps=4000) == pytest.approx(1, rel=0.01)  # the mean is kept


def test_one_slow_rank_of_many_holds_all_back():
    machine = Machine(cores=8, ranks=8, gpus=8)
    work = Work(1, 1.0, slow_share=1 / 64, slow_by=0.1)
    assert rate(work, 64, machine) == pytest.approx(64 / 1.1)


def test_ranks_of_a_machine_share_its_link():
    machine = Machine(cores=64, ranks=8, gpus=8, link_bytes=8e6)
    work = Work(100, 0.1, image_bytes=25_000)
    assert rate(work, 16, machine) == pytest.approx(2 * 8e6 / 25_000)


def test_crowded_cores_are_slower():
    assert rate(Work(1, 1.0), 2, Machine(2, 2, crowded=0.8)) == pytest.approx(2 * 0.8)
    assert rate(Work(1, 1.0), 1, Machine(2, 1, crowded=0.8)) == pytest.approx(1)
    overfull = Machine(2, 4, crowded=0.8, overfull=0.5)
    assert rate(Work(1, 1.0), 4, overfull) == pytest.approx(2 * 0.8 * 0.5)


def test_users_of_different_work_and_width_share_evenly():
    """Two cores; by hand: 4 wanted until 4 s, then 2 until the last ends at 5 s."""
    events, ended = Events(), {}
    cores = Shared(events, 2)
    for name, seconds, width in (("a", 2, 1), ("b", 4, 2), ("c", 3, 1)):
        cores.use(seconds, width)(lambda name=name: ended.setdefault(name, events.now))
    events.run()
    assert ended == pytest.approx({"a": 4, "b": 4, "c": 5})


def test_an_all_reduce_by_its_formula():
    assert ring_seconds(1, 1e9, 1e9, 1.0, 5) == 0
    assert ring_seconds(4, 1e9, 1e9, 0.01, 6) == pytest.approx(1.5 + 0.06)
    assert unhidden(1.0, 0.7, 20) == pytest.approx(0.3)
    assert unhidden(1.0, 5.0, 20) == pytest.approx(0.05)


def test_a_job_without_losses_takes_its_steps_and_pauses():
    seen = run_job(Job(1000, 1.0, interval=100, pause=2, write=5), iter([]))
    assert (seen.seconds, seen.losses, seen.paused) == (1000 + 9 * 2, 0, 18)


@pytest.mark.parametrize(
    ("lost_at", "repeated"),
    [
        (150.5, 48),  # 48.5 s after a checkpoint, which was whole at 107
        (104, 102),  # while it was being written: from the beginning
        (101, 100),  # during the pause
        (107, 5),  # the moment that it is whole
    ],
)
def test_a_lost_rank_costs_the_steps_since_the_last_whole_checkpoint(lost_at, repeated):
    seen = run_job(Job(1000, 1.0, interval=100, pause=2, write=5, restart=30), iter([lost_at]))
    assert (seen.losses, seen.steps_repeated) == (1, repeated)
    begun_at = 0 if repeated >= 100 else 100  # the step that it goes on from
    pauses = math.ceil((1000 - begun_at) / 100) - 1
    assert seen.seconds == pytest.approx(lost_at + 30 + (1000 - begun_at) + 2 * pauses)


def test_a_rank_may_be_lost_while_the_others_start_again():
    seen = run_job(Job(100, 1.0, interval=1000, restart=30), iter([50, 10, 25]))
    assert (seen.losses, seen.seconds, seen.restarting) == (3, 85 + 30 + 100, 10 + 25 + 30)


def test_a_checkpoint_waits_for_the_one_before_it():
    seen = run_job(Job(30, 1.0, interval=10, write=14), iter([]))
    assert seen.seconds == 30 + 4


@pytest.mark.parametrize("mean", [2 * HOUR, 8 * HOUR])
def test_many_losses_take_the_time_that_daly_expects(mean):
    job = Job(20_000_000, 1.0, interval=1500, pause=60, restart=300)
    seen = run_job(job, exponential(mean, seed=3))
    assert seen.losses > 600
    assert seen.seconds == pytest.approx(daly_seconds(job, mean), rel=0.01)


def test_the_best_interval_is_that_of_young_and_daly():
    """Of delays a / interval + b * interval, fitted to those simulated, the best is sqrt(a / b)."""
    mean, pause = 50 * HOUR, 20.0
    intervals = young(pause, mean) * np.geomspace(0.4, 2.5, 9)
    jobs = [Job(1_000_000_000, 1.0, round(interval), pause) for interval in intervals]
    delays = [run_job(job, exponential(mean, seed=1)).seconds / job.steps - 1 for job in jobs]
    parts = np.array([[1 / job.stretch, job.stretch] for job in jobs])
    a, b = np.linalg.lstsq(parts, np.array(delays), rcond=None)[0]
    assert math.sqrt(a / b) == pytest.approx(young(pause, mean), rel=0.04)


def test_losses_come_at_their_mean_rate():
    drawn = list(islice(exponential(5.0, seed=0), 20_000))
    assert np.mean(drawn) == pytest.approx(5, rel=0.03)
