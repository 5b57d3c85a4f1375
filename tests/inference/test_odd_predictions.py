"""Over 200 images of every mode, format and orientation: `eval` and `predict` say the same."""

import csv

import pytest

from odd_files import odd_files
from onsight.cli import main


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    for number, (name, data) in enumerate(odd_files()):
        place = folder / ("across", "down")[number % 2]
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(data)
    return folder


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_evaluation_and_prediction_of_odd_images_are_equal(trained, odd, tmp_path):
    evaluated, predicted = tmp_path / "eval.csv", tmp_path / "predict.csv"
    for words in (["eval", "--csv", evaluated], ["predict", "--csv", predicted]):
        name, *more = words
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in (name, trained.path, odd, *more)])
        assert stop.value.code == 0
    expected = {str(odd / row["path"]): row for row in rows_of(evaluated)}
    found = {row["path"]: row for row in rows_of(predicted)}
    assert len(expected) == len(found) >= 200
    for path, row in expected.items():
        same = found[path]
        assert same["problem"] == ""
        assert (same["predicted"], same["probability"]) == (row["predicted"], row["probability"])
    assert len({row["probability"] for row in found.values()}) > 100
