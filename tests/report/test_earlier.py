"""The report's comparison with the previous run: which run that is, and what the page states."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
from scipy.stats import binomtest

from onsight.report.page import compare_with_previous_run, write_report

KEPT = ("results.json", "predictions.csv", "model.safetensors", "metrics.jsonl", "config.toml")


def put(run, folder, finished):
    """A copy of a run that was finished at a time."""
    folder.mkdir(parents=True)
    for name in KEPT:
        shutil.copy(run.path / name, folder / name)
    os.utime(folder / "model.safetensors", (finished, finished))
    return folder


def mistake(folder, count):
    """Make the first of the predictions wrong; returns the number of images."""
    path = folder / "predictions.csv"
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["predicted"] = row["label"]
    for row in rows[:count]:
        row["predicted"] = "down" if row["label"] == "across" else "across"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def change(folder, **facts):
    path = folder / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_the_newest_run_that_finished_before_is_compared(trained, tmp_path):
    put(trained, tmp_path / "older", 1000)
    before = put(trained, tmp_path / "before", 2000)
    change(put(trained, tmp_path / "other-data", 2500), data="/somewhere/else")
    put(trained, tmp_path / "later", 4000)
    run = put(trained, tmp_path / "run", 3000)
    n = mistake(before, 6)
    mistake(run, 0)
    found = compare_with_previous_run(run)
    assert found["name"] == "before"
    assert found["images"] == n
    p = binomtest(0, 6).pvalue
    assert f"p = {p:.2g}" in found["sentence"]
    assert found["sentence"].startswith(f"run is {600 / n:.1f} points above before (95% CI")
    assert found["counts"] == f"both correct {n - 6}, only run 6, only before 0, neither 0"
    assert found["command"] == f"onsight compare {before} {run}"
    assert compare_with_previous_run(tmp_path / "older") is None

    page = write_report(run).read_text()
    assert 'id="previous"' in page
    assert found["counts"] in page
    assert 'id="previous"' not in write_report(tmp_path / "older").read_text()


def test_the_current_folder_has_neighbours_too(trained, tmp_path, monkeypatch):
    put(trained, tmp_path / "before", 2000)
    put(trained, tmp_path / "run", 3000)
    monkeypatch.chdir(tmp_path / "run")
    assert compare_with_previous_run(Path())["name"] == "before"


@pytest.mark.parametrize("damage", ["model.safetensors", "predictions.csv", "results.json"])
def test_a_damaged_run_is_not_compared(trained, tmp_path, damage):
    before = put(trained, tmp_path / "before", 2000)
    run = put(trained, tmp_path / "run", 3000)
    (before / damage).write_bytes(b"[]")
    os.utime(before / damage, (2000, 2000))
    assert compare_with_previous_run(run) is None


def test_runs_without_common_images_are_not_compared(trained, tmp_path):
    before = put(trained, tmp_path / "before", 2000)
    run = put(trained, tmp_path / "run", 3000)
    path = before / "predictions.csv"
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "digest": row["digest"][::-1]} for row in rows)
    assert compare_with_previous_run(run) is None
