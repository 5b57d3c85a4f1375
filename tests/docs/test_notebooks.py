"""The stored notebooks have results and plots, and nothing of the machine that made them."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SHOWS = re.compile(r"^\s*(print\(|plt\.show\()", re.M)
LOCAL = re.compile(r"/(home|root|tmp|work|Users|private|var)/|\x1b|0x[0-9a-f]{8}")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path):
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == [
        "first-classifier",
        "placement-and-speed",
        "trusting-an-accuracy",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_that_shows_something_has_its_output(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        kinds = {output["output_type"] for output in cell["outputs"]}
        assert kinds <= {"stream", "display_data", "execute_result"}
        assert bool(kinds) == bool(SHOWS.search("".join(cell["source"]))), cell["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_says_nothing_of_the_machine(path):
    notebook = read(path)
    assert path.stat().st_size < 400_000
    assert 12 <= len(notebook["cells"]) <= 25
    assert notebook["metadata"] == METADATA
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        for output in cell.get("outputs", []):
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            assert not LOCAL.search(text), text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_is_short(path):
    for cell in code_cells(path):
        assert len(cell["source"]) <= 30, cell["source"][0]
