"""The tables of a run folder are read back as they were written."""

from onsight.data.index import Problem
from onsight.report.run_files import read_csv, write_problems


def test_a_carriage_return_in_a_path_divides_no_row(tmp_path):
    problems = [Problem("a\rb.png", "decode", "broken"), Problem("c\udcff.png", "read", "gone")]
    problems += [Problem("=1+1.png", "decode", "=1+1")]
    write_problems(tmp_path / "problems.csv", problems)
    rows = read_csv(tmp_path / "problems.csv")
    assert [(row["path"], row["stage"], row["reason"]) for row in rows] == problems
