"""SIGKILL while shards are streamed from a server: the resumed run ends the same."""

import functools
import random
import signal
import sys
from pathlib import Path

import pytest
from instants import number_instants, signal_at
from tally import Tally, count
from trials import leftovers, resume, train

from onsight.training.verify_resume import compare_folders

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "shards"))
from faulty_server import serving
from shard_files import make_shards

STREAM = ["--residency", "stream"]


@pytest.fixture(scope="module")
def url():
    with serving(make_shards(12, 10)) as server:
        yield f"{server.url}/part-{{000..011}}.tar"


@pytest.fixture(scope="module")
def undisturbed(url, tmp_path_factory):
    """(run folder, number of instants)."""
    folder = tmp_path_factory.mktemp("undisturbed")
    prepare = functools.partial(number_instants, folder / "notes")
    ended = train(url, folder / "run", *STREAM, prepare=prepare)
    assert ended.code == 0, ended.output
    return folder / "run", int((folder / "notes").read_text().split()[0])


def test_killed_while_shards_are_streamed(url, undisturbed, tmp_path):
    expected, instants = undisturbed
    tally, drawn = Tally("SIGKILL while shards are streamed from a server"), random.Random(0)
    for number in range(count(40, 1)):
        out, saved = tmp_path / f"{number}", tmp_path / f"{number}.saved"
        at = drawn.randrange(instants // 2, instants)  # in the first half, libraries are loaded
        prepare = functools.partial(signal_at, signal.SIGKILL, at, False, saved)
        with tally.trial(f"instant {at:,}"):
            ended = train(url, out, *STREAM, prepare=prepare)
            assert ended.code == -signal.SIGKILL, ended.output
            again = resume(url, out, *STREAM)
            assert again.code == 0, again.output
            assert leftovers(out) == []
            assert compare_folders(expected, out).differences == []
            predictions = (expected / "predictions.csv").read_bytes()
            assert (out / "predictions.csv").read_bytes() == predictions
            assert not list(out.with_name(f"{number}-cache").rglob("*.tmp"))
    tally.end()
