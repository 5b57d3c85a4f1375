"""The tables of a run folder are read back as they were written."""

import json

from onsight.data.index import Problem
from onsight.report.run_files import read_csv, read_results, write_problems


def test_a_carriage_return_in_a_path_divides_no_row(tmp_path):
    problems = [Problem("a\rb.png", "decode", "broken"), Problem("c\udcff.png", "read", "gone")]
    problems += [Problem("=1+1.png", "decode", "=1+1")]
    write_problems(tmp_path / "problems.csv", problems)
    rows = read_csv(tmp_path / "problems.csv")
    assert [(row["path"], row["stage"], row["reason"]) for row in rows] == problems


def test_results_may_name_data_that_is_not_utf8_and_lack_keys(tmp_path):
    results = {"data": "c\udcff", "accuracy": 1, "loss": None, "notes": []}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert read_results(tmp_path) == results
    assert read_results(tmp_path)["seconds"] is None
    assert read_results(tmp_path / "gone") == {}
