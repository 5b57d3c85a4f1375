"""`onsight verify-resume`, with runs forked from a process that has torch loaded."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from tally import count
from trials import Trial

from onsight.cli import main
from onsight.tensorfile import read_tensors, write_tensors
from onsight.training import verify_resume as killed
from onsight.training.verify_resume import _draw_positions, compare_folders, drop_timings

SETTINGS = "--model linear --threads 1 --precision fp32 --plan default --batch-size 8 --device cpu"


@pytest.fixture
def forked(monkeypatch, tmp_path):
    """Start runs in a third of a second; returns the growing list of them."""
    runs = []

    def start(words, log_file):
        log = tmp_path / f"{len(runs)}.log"
        runs.append(Trial(["train", *words], log))
        return runs[-1]

    monkeypatch.setattr(killed, "_start", start)
    return runs


def ask(capsys, *words, settings=SETTINGS):
    with pytest.raises(SystemExit) as ended:
        main(["verify-resume", *map(str, words), *settings.split()])
    return ended.value.code, capsys.readouterr()


def test_it_kills_resumes_and_finds_all_equal(forked, shared_bars, tmp_path, capsys):
    kills, cache = count(10, 1), tmp_path / "cache"
    code, captured = ask(capsys, shared_bars, "--kills", kills, "--json", "--cache-folder", cache)
    found = json.loads(captured.out)
    assert code == 0, found
    assert found["equal"] is True
    assert found["differences"] == []
    assert found["steps"] == 24
    assert len(found["kills"]) == kills
    assert len(forked) == 2 + kills
    assert [run.poll() for run in forked] == [0, *[-9] * kills, 0]
    assert found["compared"]["epochs"] == 2
    assert captured.err.count("kill ") == kills


def test_a_difference_is_named_and_both_runs_are_kept(
    forked, undisturbed, shared_bars, tmp_path, capsys, monkeypatch
):
    from onsight.training import verify_resume as verify

    real = verify.compare_folders

    def planted(folder, other):
        path = other / "model.safetensors"
        tensors, facts = read_tensors(path)
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        next(iter(tensors.values())).view(-1)[0] += 1
        write_tensors(path, tensors, facts)
        return real(folder, other)

    monkeypatch.setattr(verify, "compare_folders", planted)
    code, captured = ask(capsys, shared_bars, "--kills", 1, "--cache-folder", tmp_path / "cache")
    assert code == 1
    assert "model.safetensors: 1 of " in captured.out
    kept = captured.out.rpartition("both runs: ")[2].strip()
    assert read_tensors(Path(kept, "undisturbed", "model.safetensors"))
    shutil.rmtree(kept)


@pytest.mark.parametrize(
    ("flag", "value", "remedy"),
    [
        ("--budget", "1m", "leave --budget out"),
        ("--checkpoints", "/elsewhere", "leave --checkpoints out"),
        ("--model", "auto", "name it with --model"),
    ],
)
def test_settings_that_cannot_be_verified_are_refused(tmp_path, capsys, flag, value, remedy):
    settings = SETTINGS.replace("--model linear", "") if flag == "--model" else SETTINGS
    code, captured = ask(capsys, tmp_path / "no such", flag, value, settings=settings)
    assert code == 2
    assert remedy in captured.err


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_run_without_steps_to_kill_it_between_is_refused(
    forked, shared_bars, tmp_path, capsys, backbone, is_frozen
):
    short = SETTINGS.replace("--batch-size 8", "--batch-size 512 --epochs 1")
    frozen = f"--model test_resnet --weights {backbone.model} --freeze --threads 1 --device cpu"
    words = [shared_bars, "--cache-folder", tmp_path / "cache"]
    code, captured = ask(capsys, *words, settings=frozen if is_frozen else short)
    assert code == 2
    assert f"with these settings it makes only {0 if is_frozen else 1};" in captured.err
    assert len(forked) == 1


@pytest.mark.parametrize("name", ["weights", "optimizer", "metrics", "predictions", "missing"])
def test_every_kind_of_difference_is_found(name, undisturbed, tmp_path):
    other = shutil.copytree(undisturbed, tmp_path / "run")
    assert compare_folders(undisturbed, other).differences == []
    if name in ("weights", "optimizer"):
        path = other / ("model" if name == "weights" else "checkpoints/last")
        path = path.with_suffix(".safetensors")
        tensors, facts = read_tensors(path)
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}
        key = next(key for key in tensors if name == "weights" or "exp_avg" in key)
        tensors[key].view(torch.uint8).view(-1)[0] ^= 1  # the last bit of one number
        write_tensors(path, tensors, facts)
    elif name == "metrics":
        text = (other / "metrics.jsonl").read_text()
        (other / "metrics.jsonl").write_text(text.replace('"train_loss": 0', '"train_loss": 1', 1))
    elif name == "predictions":
        text = (other / "predictions.csv").read_text()
        (other / "predictions.csv").write_text(text[:-20])
    else:
        (other / "predictions.csv").unlink()
    assert len(compare_folders(undisturbed, other).differences) == 1


def test_times_are_left_out_and_nothing_else():
    row = {"seconds": 1, "images_per_second": 2, "data_wait_share": 3, "loss": 4}
    assert drop_timings({"rows": [row | {"lines": [row]}]}) == {
        "rows": [{"loss": 4, "lines": [{"loss": 4}]}]
    }


def test_kills_are_drawn_in_order_and_no_more_than_there_are_steps():
    random.seed(1)
    places = _draw_positions(5, 2, 4, 0)
    assert places == sorted(set(places))
    assert len(places) == 5
    assert all(0 < 4 * epoch + step < 8 and step < 4 for epoch, step in places)
    assert len(_draw_positions(50, 2, 4, 0)) == 7
