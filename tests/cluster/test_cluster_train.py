"""The command on a cluster: the rank's run, its words, its failures, and what they become."""

import signal

import pytest
from safetensors.numpy import load_file

import onsight
from onsight.cli import main
from onsight.cluster import train as cluster_train
from onsight.cluster.ranks import run_rank
from onsight.report.console import SilentReporter

WORDS = ["--cluster", "auto", "--threads", 1, "--precision", "fp32", "--folds", 1]


def command(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


@pytest.fixture
def on_fake(fake_ray, monkeypatch):
    """Ray Train's part played by a function that runs the one rank here."""
    monkeypatch.setattr(
        cluster_train,
        "run_ranks",
        lambda job, state, allocation: run_rank(
            {"job": job, "state": state, "cpus": allocation.cpus}
        ),
    )
    return fake_ray


def test_a_run_on_a_cluster_is_the_run_of_one_machine(on_fake, shared_bars, tmp_path, capsys):
    out = tmp_path / "there"
    words = ["train", shared_bars, "--epochs", 1, "--model", "linear"]
    assert command(*words, "--out", out, *WORDS) == 0
    captured = capsys.readouterr()
    assert "cluster: 1 rank on a Ray cluster of 1 machine (1 CPU each)" in captured.err
    assert "epoch 1/1: loss" in captured.err
    assert "accuracy" in captured.out
    fields = {"epochs": 1, "model": "linear", "folds": 1}
    here = onsight.train(
        shared_bars,
        out=tmp_path / "here",
        threads=1,
        precision="fp32",
        reporter=SilentReporter(),
        **fields,
    )
    expected, found = (load_file(folder / "model.safetensors") for folder in (here.path, out))
    assert all((found[name] == weights).all() for name, weights in expected.items())
    assert on_fake.calls[-1][0] == "shutdown"


def test_a_run_folder_in_use_is_refused_before_anything_starts(
    on_fake, shared_bars, tmp_path, capsys
):
    (tmp_path / "mine.txt").touch()
    assert command("train", shared_bars, "--out", tmp_path, *WORDS) == 2
    assert "in use" in capsys.readouterr().err


def test_more_ranks_than_cpus_are_refused(on_fake, shared_bars, tmp_path, capsys):
    assert command("train", shared_bars, "--out", tmp_path / "run", *WORDS, "--ranks", 8) == 2
    assert "8 ranks need a CPU each, but the Ray cluster has 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_the_user_can_fix_is_reported_once_and_not_tried_again(
    on_fake, tmp_path, capsys, monkeypatch
):
    tries = []
    once = cluster_train.run_ranks

    def thrice(*given):
        for _ in range(3):
            tries.append(1)
            try:
                once(*given)
            except onsight.errors.DataError:
                continue

    monkeypatch.setattr(cluster_train, "run_ranks", thrice)
    (tmp_path / "empty").mkdir()
    assert command("train", tmp_path / "empty", "--out", tmp_path / "run", *WORDS) == 2
    assert capsys.readouterr().err.count("error: ") == 1
    assert len(tries) == 3  # the second and third returned at once


def test_a_bug_in_a_rank_shows_its_traceback(on_fake, shared_bars, tmp_path, capsys, monkeypatch):
    def fail(*given, **fields):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("onsight.training.run.train", fail)
    assert command("train", shared_bars, "--out", tmp_path / "run", *WORDS) == 1
    said = capsys.readouterr().err
    assert "a rank failed:" in said
    assert "ZeroDivisionError: planted" in said


def test_a_signal_stops_the_ranks_after_a_checkpoint(
    on_fake, shared_bars, tmp_path, capsys, monkeypatch
):
    start = cluster_train.JobState.start

    def start_and_signal(self, size, checkpoint):
        start(self, size, checkpoint)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cluster_train.JobState, "start", start_and_signal)
    monkeypatch.setattr("onsight.cluster.ranks._POLL_SECONDS", 0.05)
    out = tmp_path / "run"
    words = ["train", shared_bars, "--epochs", 2000, "--model", "linear", "--out", out]
    assert command(*words, *WORDS) == 143
    assert f"to continue, repeat the command with --out {out} --resume" in capsys.readouterr().err
    assert (out / "checkpoints" / "last.safetensors").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
