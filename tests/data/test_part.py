"""A part of DATA: drawn at random, with everything else accounted for."""

import csv

import numpy as np
import pytest

import onsight
from onsight.config import make_config
from onsight.data.dataset import limit_decoding
from onsight.data.index import TEST, TRAIN, Index, Row
from onsight.data.sources.source import (
    Source,
    draw_rows,
    is_held_out,
    list_unselected,
    select_rows,
    take_drawn,
)
from onsight.report.console import SilentReporter


def make_source(tmp_path, classes=3, free=40, test=10):
    rows = [
        Row(f"{label}/{split}/{number}", f"class {label}", split)
        for label in range(classes)
        for split, count in ((TRAIN, free), (TEST, test))
        for number in range(count)
    ]
    index = Index.of(rows)
    return Source(
        "folder", tmp_path, index, lambda row: np.full((2, 2, 1), row % 256, np.uint8), "f", ""
    )


@pytest.mark.parametrize("count", [1, 3, 50, 119])
def test_rows_are_drawn_from_the_training_part_alone(tmp_path, count):
    source = make_source(tmp_path)
    rows = draw_rows(source, count, 0)
    splits, labels = source.index.splits[rows], source.index.labels[rows]
    assert (splits == TEST).sum() == 30
    assert (splits == TRAIN).sum() == max(3, count)
    assert set(labels[splits == TRAIN]) == {0, 1, 2}
    assert len(set(rows.tolist())) == len(rows)
    assert np.array_equal(rows, draw_rows(source, count, 0))


def test_classes_are_drawn_in_proportion(tmp_path):
    source = make_source(tmp_path, free=2000, test=0)
    counts = np.bincount(source.index.labels[draw_rows(source, 3000, 1)])
    assert (abs(counts - 1000) < 80).all()  # 3 standard deviations


def test_the_others_are_listed_and_rows_are_read_through(tmp_path):
    source = make_source(tmp_path)
    rows = np.array([7, 3, 100])
    part = select_rows(source, rows)
    assert [part.read(number)[0, 0, 0] for number in range(3)] == [7, 3, 100]
    assert list(part.index.locators) == [source.index.locators[int(row)] for row in rows]
    listed = {problem.path for problem in list_unselected(source, rows, "not drawn")}
    assert listed == set(source.index.locators) - set(part.index.locators)
    assert part.fingerprint != source.fingerprint
    assert part.fingerprint != select_rows(source, rows[:2]).fingerprint


def test_a_run_on_a_part_accounts_for_every_image(bars, tmp_path):
    fields = {"epochs": 1, "threads": 1, "reporter": SilentReporter()}
    run = onsight.train(bars, out=tmp_path / "run", train_images=50, strict=True, **fields)
    assert run.results["used"] == 50
    assert run.results["problems"] == 70
    with open(run.path / "problems.csv", newline="") as file:
        reasons = {row["reason"] for row in csv.DictReader(file)}
    assert reasons == {"not among the images drawn (--train-images 50)"}


@pytest.mark.parametrize("drawn", [0, 80])
def test_images_decoded_in_time_are_those_that_fewer_training_images_draw(tmp_path, drawn):
    """So that a run which repeats one with a budget has the same images."""
    whole, config = make_source(tmp_path), make_config({"train_images": drawn})
    source = take_drawn(whole, drawn, config.seed)
    limit = limit_decoding(source, config, 0.0)
    assert sorted(limit.order.tolist()) == list(range(len(source.index)))
    free = limit.order[~is_held_out(source)[limit.order]]
    required = set(np.flatnonzero(~limit.is_optional).tolist())
    assert required == {*np.flatnonzero(is_held_out(source)).tolist(), *free[:12].tolist()}
    for count in (12, 50, 79):
        decoded = {source.index.locators[int(row)] for row in free[:count]}
        rows = draw_rows(whole, count, config.seed)
        again = {whole.index.locators[int(row)] for row in rows if whole.index.splits[row] == TRAIN}
        assert decoded == again
