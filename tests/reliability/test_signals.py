"""SIGTERM, SIGINT and SIGHUP at instants of a run, from its start to its last file."""

import functools
import random
import signal

from instants import signal_at
from tally import Tally, count
from test_kills import check_resumed
from trials import leftovers, train

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def test_stopped_at_an_instant(instants, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("SIGTERM, SIGINT or SIGHUP at an instant"), random.Random(2)
    for trial in range(count(100, 2)):
        number, out = SIGNALS[trial % 3], tmp_path / f"{trial}"
        saved, at = tmp_path / f"{trial}.saved", drawn.randrange(1, instants[0])
        prepare = functools.partial(signal_at, number, at, False, saved)
        with tally.trial(f"{number.name} at instant {at:,}"):
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code in (128 + number, -number), ended.output
            if "a checkpoint was written" in ended.output:
                assert ended.code == 128 + number
            if saved.exists() and ended.code > 0:
                assert leftovers(out) == []
            check_resumed(shared_bars, out, saved, undisturbed)
    tally.end()


def test_a_stop_inside_a_save_waits_for_it(instants, undisturbed, shared_bars, tmp_path):
    tally, drawn = Tally("SIGTERM inside a save"), random.Random(3)
    for trial in range(count(20, 1)):
        saved, out = tmp_path / f"{trial}.saved", tmp_path / f"{trial}"
        at = drawn.randrange(1, int(instants[1] * 0.9))
        prepare = functools.partial(signal_at, signal.SIGTERM, at, True, saved)
        with tally.trial(f"instant {at:,}"):
            ended = train(shared_bars, out, prepare=prepare)
            assert ended.code == 128 + signal.SIGTERM, ended.output
            assert "a checkpoint was written" in ended.output
            assert leftovers(out) == []
            check_resumed(shared_bars, out, saved, undisturbed)
    tally.end()
