"""Runs of several ranks as people start them: real processes, real signals."""

import csv
import json
import re
import signal
import time

import pytest
import torch
from launched import SMALL, Launched, listening_beyond_loopback, users_module, write_module
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import onsight
from onsight.cli import main
from onsight.errors import OnsightError, RankLost
from onsight.ranks import launch
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors

ALONE = {
    "model": "lenet",
    "image_size": "16",
    "batch_size": 16,
    "threads": 1,
    "reporter": SilentReporter(),
}
THEIRS = {"model": "theirs:Precise"}
PRECISE = ["theirs:Precise" if word == "lenet" else word for word in SMALL]
ENDLESS = [*SMALL, "--epochs", 10_000]
PROMISED_SECONDS = 60


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def files_of(run):
    return sorted(
        str(path.relative_to(run)) for path in run.rglob("*") if "tfevents" not in path.name
    )


def start_endless(bars, folder, ranks=2):
    """A run that has started training and is not restarted, and its processes by rank."""
    words = [*ENDLESS, "--ranks", ranks, "--restarts", 0]
    run = Launched(folder, bars, *words, "--out", folder / "run")
    run.wait_for(folder / "run" / "checkpoints" / "last.safetensors")
    processes = run.ranks()
    assert sorted(processes) == list(range(ranks))
    return run, processes


@pytest.fixture(autouse=True)
def nothing_left():
    """End whatever a failed test has left running."""
    yield
    while Launched.started:
        Launched.started.pop().abandon()


@pytest.fixture(scope="module")
def two_ranks(shared_bars, build_once):
    """A run of two ranks with folds, the same run in one process, and what the first printed."""

    def train(folder):
        words = [*PRECISE[2:], "--folds", 2, "--epochs", 2, "--ranks", 2, "--json"]
        with users_module(folder):
            run = Launched(folder, shared_bars, *words, "--out", folder / "two", "--verbose")
            code, out, err = run.end()
            assert code == 0, err
            fields = {"epochs": 2, "folds": 2} | ALONE | THEIRS
            onsight.train(shared_bars, out=folder / "one", **fields)
        (folder / "stdout").write_text(out)
        (folder / "stderr").write_text(err)

    folder = build_once("two-ranks", train)
    printed = [(folder / name).read_text() for name in ("stdout", "stderr")]
    return folder / "two", folder / "one", *printed


def test_two_ranks_end_as_one_and_everything_is_written_once(two_ranks):
    path, alone, out, err = two_ranks
    (line,) = out.splitlines()
    reported = json.loads(line)
    expected = json.loads((alone / "results.json").read_text())
    assert reported["ranks"] == 2
    for name in ("accuracy", "confusion", "images", "used", "best_epoch"):
        assert reported[name] == expected[name]
    assert err.count("; torch ") == 1
    assert err.count("epoch 1/2") == 1  # that of the model that is kept
    assert err.count("of the 16 images of a batch") == 2
    assert files_of(path) == files_of(alone)
    assert len(list((path / "tensorboard").glob("*tfevents*"))) == 1
    mine, theirs = (rows_of(run / "predictions.csv") for run in (alone, path))
    assert len(mine) == expected["images"] == 120
    for column in ("path", "label", "predicted", "fold"):
        assert [row[column] for row in theirs] == [row[column] for row in mine]


def test_every_rank_has_its_entry_in_the_placement(two_ranks):
    path, _, _, err = two_ranks
    entries = json.loads((path / "placement.json").read_text(encoding="utf-8"))
    assert [entry["rank"] for entry in entries] == [0, 1]
    shares = [
        sum(row["tensors"] for row in entry["rows"] if row["kind"] == "batch") for entry in entries
    ]
    numbers = [
        sum(row["numbers"] for row in entry["rows"] if row["dtype"] == "int64") for entry in entries
    ]
    assert shares == [2, 2]
    assert sum(numbers) == 16  # the batch is shared out, and nothing is counted twice
    assert all(entry["problems"] == [] for entry in entries)
    assert len(re.findall("^placement: everything is on cpu.*other ranks on cpu$", err, re.M)) == 1


@pytest.mark.soak
def test_no_rank_outlives_a_killed_launcher(bars, tmp_path):
    run, _ = start_endless(bars, tmp_path)
    run.process.kill()
    limit = time.monotonic() + PROMISED_SECONDS
    while run.ranks():
        assert time.monotonic() < limit
        time.sleep(0.1)
    run.process.communicate()


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_stopped_run_listens_to_nobody_else_and_resumes_with_any_number_of_ranks(
    bars, tmp_path, ranks
):
    stopped = tmp_path / "run"
    with users_module(tmp_path):
        words = [*PRECISE, "--epochs", 20, "--ranks", 2, "--log", "none"]
        run = Launched(tmp_path, bars, *words, "--out", stopped)
        run.wait_for(stopped / "checkpoints" / "last.safetensors")
        assert listening_beyond_loopback([run.process.pid, *run.ranks().values()]) == []
        run.process.send_signal(signal.SIGTERM)
        code, out, err = run.end(PROMISED_SECONDS)
        assert (code, out) == (143, "")
        assert err.count("to continue, repeat the command") == 1
        assert "error: " not in err
        done = len((stopped / "metrics.jsonl").read_text().splitlines())
        assert 0 < done < 20
        if ranks == 1:
            resumed = {"resume": True, "ranks": 1, "reporter": SilentReporter(), **THEIRS}
            onsight.train(bars, out=stopped, **resumed)
        else:
            words = [bars, "--resume", "--out", stopped, "--ranks", ranks]
            words += ["--model", THEIRS["model"]]  # its code runs only if named again
            code, _, err = Launched(tmp_path, *words).end(PROMISED_SECONDS)
            assert code == 0, err
        whole = onsight.train(bars, out=tmp_path / "whole", epochs=20, **ALONE | THEIRS)
    found = weights_of(stopped)
    for name, tensor in weights_of(whole.path).items():
        assert torch.allclose(found[name], tensor, rtol=1e-10, atol=1e-10), name
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == 20
    for column in ("path", "predicted"):
        mine, theirs = (rows_of(path / "predictions.csv") for path in (whole.path, stopped))
        assert [row[column] for row in mine] == [row[column] for row in theirs]


def weights_of(run):
    return read_tensors(run / "model.safetensors")[0]


@pytest.mark.soak
def test_an_interrupt_before_the_first_step_ends_quietly(bars, tmp_path):
    run = Launched(tmp_path, bars, *ENDLESS, "--ranks", 2, "--out", tmp_path / "run")
    limit = time.monotonic() + PROMISED_SECONDS
    while not run.ranks():
        assert time.monotonic() < limit
        time.sleep(0.05)
    time.sleep(0.5)  # torch is being imported
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.end(PROMISED_SECONDS)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert err.count("error: ") == 1


@pytest.mark.soak  # as below, for a reason that every rank finds
def test_a_mistake_in_data_is_reported_once(bars, tmp_path, capfd):
    with pytest.raises(SystemExit) as stop:
        main(["train", str(bars) + "x", "--ranks", "2", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("error: ") == 1
    assert "does not exist" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "2", "--device", "cuda:7"], "no device 'cuda:7'"),
        (["--device", "cpu,cpu"], "each named once"),
        (["--ranks", "-1"], "--ranks -1"),
        (
            ["--ranks", "2", "--cuda-graph", "on", "--compile", "on"],
            "--compile on and --cuda-graph on cannot be combined with --ranks 2",
        ),
        (["--cuda-graph", "on"], "only NVIDIA's and AMD's GPUs have CUDA graphs"),
    ],
)
def test_impossible_ranks_are_refused_before_any_starts(bars, capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        main(["train", str(bars), *words])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("error: ") == 1


@pytest.mark.soak  # tests/ranks/test_ranks.py has the ranks' own words
def test_batch_norm_over_ranks_of_a_cpu_is_refused_once(bars, tmp_path, capfd):
    words = ["--ranks", "2", "--compile", "on", "--model", "compact", "--threads", "1"]
    with pytest.raises(SystemExit) as stop:
        main(["train", str(bars), *words, "--folds", "1", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    err = capfd.readouterr().err
    assert "--compile on cannot be combined with --ranks 2 on a CPU" in err
    assert err.count("error: ") == 1


def test_a_fault_in_a_users_network_is_shown_once(bars, tmp_path, capfd, hostile_folder):
    fields = {"model": "theirs:Faulty", "image_size": "16", "threads": 1, "epochs": 5}
    write_module(hostile_folder, "01")
    with pytest.raises(OnsightError, match="rank [01] failed:\n") as caught:
        onsight.train(bars, out=tmp_path / "run", ranks=2, **fields)
    shown = str(caught.value) + capfd.readouterr().err
    assert caught.value.exit_code == 1
    assert shown.count("RuntimeError: a connection of mine is missing") == 1
    assert shown.count("Traceback") == 1
    assert "theirs.py" in shown


def failure(folder, rank, exit_code, *, at=None, **facts):
    """How torch's launcher describes a failed rank; with a time, the rank left a message."""
    path = folder / f"{rank}.json"
    if at is not None:
        extra = {"timestamp": str(at), "exit_code": exit_code, "lost": False, "bug": False}
        content = {"message": {"message": f"said by {rank}", "extraInfo": extra | facts}}
        path.write_text(json.dumps(content))
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=exit_code, error_file=str(path))


NOW = 4_000_000_000  # later than torch's own times: the message comes last


def test_a_rank_that_the_launcher_ended_is_not_the_cause(tmp_path):
    failures = {0: failure(tmp_path, 0, -15), 1: failure(tmp_path, 1, 2, at=NOW)}
    error = launch._to_error(failures, tmp_path)
    assert (str(error), error.exit_code) == ("said by 1", 2)


def test_a_killed_rank_is_the_cause_even_if_others_reported_it_lost(tmp_path):
    failures = {0: failure(tmp_path, 0, 1, at=NOW, lost=True), 1: failure(tmp_path, 1, -9)}
    error = launch._to_error(failures, tmp_path)
    assert isinstance(error, RankLost)
    assert "rank 1 was lost, killed by SIGKILL" in str(error)


def test_the_first_message_is_reported(tmp_path):
    failures = {0: failure(tmp_path, 0, 1, at=20), 1: failure(tmp_path, 1, 2, at=10)}
    assert str(launch._to_error(failures, tmp_path)) == "said by 1"


def test_a_rank_that_ends_alone_by_a_signal_is_named(tmp_path):
    error = launch._to_error({1: failure(tmp_path, 1, -15)}, tmp_path)
    assert "rank 1 was lost, killed by SIGTERM" in str(error)
