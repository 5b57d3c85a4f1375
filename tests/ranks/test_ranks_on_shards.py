"""Two ranks on shards of a server end as one, and fetch each shard once."""

import csv
import sys
from pathlib import Path

import pytest

import onsight
from onsight.report.console import SilentReporter

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "shards"))
from faulty_server import serving
from launched import SMALL, Launched, users_module
from shard_files import make_shards

STREAM = {"model": "theirs:Precise", "residency": "stream"}
ALONE = {"image_size": "16", "batch_size": 16, "threads": 1, "folds": 1, "epochs": 2}


@pytest.fixture(autouse=True)
def nothing_left():
    """End whatever a failed test has left running."""
    yield
    while Launched.started:
        Launched.started.pop().abandon()


def rows_of(run):
    return list(csv.DictReader((run / "predictions.csv").read_text().splitlines()))


@pytest.mark.soak
def test_two_ranks_stream_what_one_does(tmp_path):
    given = [word for name, value in STREAM.items() for word in (f"--{name}", value)]
    small = SMALL[: SMALL.index("--model")] + SMALL[SMALL.index("--model") + 2 :]
    words = [*small, *given, "--epochs", 2, "--ranks", 2, "--cache-folder", tmp_path / "cache"]
    with serving(make_shards(12, 10)) as server, users_module(tmp_path):
        url = f"{server.url}/part-{{000..011}}.tar"
        code, _, err = Launched(tmp_path, url, *words, "--out", tmp_path / "two").end()
        assert code == 0, err
        read = {name: n for (method, name), n in server.requests.items() if method == "GET"}
        fields = ALONE | STREAM | {"out": tmp_path / "one", "reporter": SilentReporter()}
        alone = onsight.train(url, **fields)
    assert len(read) == 12
    assert set(read.values()) == {1}  # over both ranks: they share the copies
    mine, theirs = rows_of(alone.path), rows_of(tmp_path / "two")
    assert [row["path"] for row in theirs] == [row["path"] for row in mine]
    for row, other in zip(mine, theirs, strict=True):
        assert other["predicted"] == row["predicted"]
        assert float(other["probability"]) == pytest.approx(float(row["probability"]), abs=1e-6)
