"""Notebooks read as scripts: order, magics, damaged files, and a real run of one."""

import ast
import json
import sys

import pytest

from onsight.errors import DataError
from onsight.explainer.script.notebook import read_notebook, source_of, whole_tree
from onsight.explainer.script.processes import Processes
from onsight.explainer.script.reading import findings_in
from onsight.explainer.script.stand_ins import stand_ins
from onsight.explainer.tracing.sites import Site

TRAINING = [
    "import torch\nfrom torch import nn\nfrom IPython.display import clear_output\n!pip install x",
    "%%bash\nrm -rf everything",
    """def train(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(100000):
        optimizer.zero_grad()
        loss = net(torch.ones(8, 3)).square().mean()
        loss.backward()
        optimizer.step()
        clear_output()
        display(loss.item())
""",
    "%%time\nget_ipython().run_line_magic('matplotlib', 'inline')\ntrain(nn.Linear(3, 2))",
]


def written(folder, code, **changed):
    content = {
        "nbformat": 4,
        "metadata": {"language_info": {"name": "python"}},
        "cells": [{"cell_type": "markdown", "source": "# Pets"}]
        + [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in code],
    }
    path = folder / "pets.ipynb"
    path.write_text(json.dumps(content | changed), encoding="utf-8")
    return path


def test_cells_are_read_in_order_and_magics_left_out(tmp_path):
    path = written(tmp_path, TRAINING)
    found = read_notebook(path)
    assert [one.name.rpartition("/")[2] for one in found.units] == [
        f"pets.ipynb, cell {number}" for number in (1, 2, 3, 4)
    ]
    assert found.left_out == [
        "cell 1, line 4: !pip install x",
        "cell 2: %%bash",
        "cell 4: %%time",
    ]
    assert [len(ast.parse(one.text).body) for one in found.units] == [4, 0, 1, 2]
    assert "train(nn.Linear(3, 2))" in ast.unparse(whole_tree(path))
    assert source_of(f"{path}, cell 3").startswith("def train")


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("x = 1\n%timeit x\nif x:\n    !ls\n", "x = 1\npass\nif x:\n    pass\n"),
        ("files = !ls\nnet?\n?net", "files = []\npass\npass"),
        ("!pip install \\\n  timm\ny = 2", "pass\n\ny = 2"),
        ("z = (5\n% 3)", "z = (5\n% 3)"),  # Python, and no magic
        ("%%capture out\nx = 3", "\nx = 3"),
        ("%%writefile net.py\nx = 3", ""),
    ],
)
def test_lines_keep_their_numbers(tmp_path, cell, python):
    (unit,) = read_notebook(written(tmp_path, [cell])).units
    assert unit.text == python


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cells": None}, "has no cells"),
        ({"worksheets": [], "nbformat": 3}, "format 3: convert it by `jupyter nbconvert"),
        ({"metadata": {"kernelspec": {"language": "R"}}}, "a notebook in r;"),
    ],
)
def test_other_files_are_refused(tmp_path, changed, words):
    with pytest.raises(DataError, match=words):
        read_notebook(written(tmp_path, [], **changed))


def test_a_damaged_notebook_and_a_damaged_cell_are_told_apart(tmp_path):
    path = written(tmp_path, ["x = 1", "def f(:\n  pass"])
    with pytest.raises(DataError, match=r"pets.ipynb, cell 2, line 1: Python cannot read this"):
        read_notebook(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="is damaged: it is not the JSON of a notebook"):
        read_notebook(path)


def test_mistakes_are_found_in_their_cell(tmp_path):
    cells = [
        "import torch\nfrom torch import nn",
        "def predict(net, loader):\n    net.eval()\n    for images, _ in loader:\n"
        "        nn.CrossEntropyLoss()(torch.softmax(net(images), 1), _)\n",
    ]
    (found,) = findings_in(written(tmp_path, cells))
    site = Site(file=str(found.file), line=found.line)
    assert str(site) == "pets.ipynb, cell 2, line 4"


def test_a_notebook_is_watched_and_its_lines_are_named(tmp_path):
    path = written(tmp_path, TRAINING)
    before = path.read_bytes()
    with Processes(path, [], 100, 60.0) as processes:
        processes.prepare(is_late=True)
        trace = processes.run(seconds=0.3)
    assert trace.images == 8 * trace.steps > 0
    assert str(trace.forward_site) == "pets.ipynb, cell 3, line 5"
    assert str(trace.optimizer.site) == "pets.ipynb, cell 3, line 2"
    assert str(trace.reads[0].sites[0]) == "pets.ipynb, cell 3, line 9"
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["pets.ipynb"]


def test_stand_ins_take_whatever_is_asked_of_them(monkeypatch):
    for name in [one for one in sys.modules if one.partition(".")[0] in ("IPython", "tqdm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr("onsight.explainer.script.stand_ins._is_there", lambda name: False)
    names = stand_ins()
    names["display"]("x", clear=True)
    names["get_ipython"]().run_line_magic("load_ext", "autoreload")
    assert "IPKernelApp" not in names["get_ipython"]().config
    assert not hasattr(sys.modules["IPython"], "__file__")
    sys.modules["IPython"].display.display_html("x")
