"""Oracle: the planted bug at its line and nothing else; nothing in scripts without mistakes."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onsight_lint.errors import ReadError
from onsight_lint.read import check_script, read_script, rule_table, select_rules
from onsight_lint.read_many import read_many
from onsight_lint.rule import Mistake, Rule
from onsight_lint.script import Library, Script
from onsight_lint.values import Values

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "onsight_lint"

RULES = set(rule_table())
SCRIPTS = sorted((HERE / "planted").glob("*.py"))


def expected(path):
    """Return (rule, line) of each `# expect: rule`, and the lines `# fixed: ...` together.

    A comment on a line of its own is for the next line.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [
        (line.partition("# expect: ")[2], number + line.lstrip().startswith("#"))
        for number, line in enumerate(lines, 1)
        if "# expect: " in line
    ]
    fixed = [line.removeprefix("# fixed: ") for line in lines if line.startswith("# fixed: ")]
    return found, "\n".join(fixed)


def test_every_rule_has_a_planted_script():
    assert {rule for path in SCRIPTS for rule, _ in expected(path)[0]} == RULES


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_planted_bug_is_found_at_its_line_and_nothing_else(tmp_path, path):
    """Without the comments about it, whose words might be what is found."""
    places, fixed = expected(path)
    assert places
    text = re.sub(r" *# (expect|fixed): .*", "", path.read_text(encoding="utf-8"))
    script = tmp_path / path.name
    script.write_text(text, encoding="utf-8")
    found = read_many([script], Library(), select_rules()).sorted
    assert [(finding.rule, finding.line) for finding in found] == places
    for finding in found:
        assert finding.file == script
        assert finding.problem
        assert finding.why.endswith(".")
        ast.parse(textwrap.dedent(finding.fixed))
        assert fixed in finding.fixed


def test_the_pattern_of_a_rule_is_searched_line_by_line(tmp_path):
    def check(context):
        yield Mistake(next(context.script.nodes(ast.Attribute)), "no call", "net.eval()")

    rule = Rule("no-call", "A method without a call", "Nothing happens.", check, r"^net\.eval$")
    script = tmp_path / "train.py"
    for text, count in (("net = 1\nnet.eval\nprint()\n", 1), ("net = 1\nnet.eval()\n", 0)):
        script.write_text(text)
        assert len(check_script(script, Library(), [rule]).findings) == count


@pytest.mark.parametrize("path", sorted((HERE / "clean").glob("*.py")), ids=lambda path: path.stem)
def test_nothing_is_found_in_a_script_without_mistakes(path):
    assert read_script(path) == []


def test_the_id_of_a_rule_is_the_name_of_its_file():
    files = {path.stem for path in (PACKAGE / "rules").glob("[!_]*.py")}
    assert {name.replace("_", "-") for name in files} == RULES
    assert all(rule.title and rule.why.endswith(".") for rule in rule_table().values())


def write(folder, **files):
    """Write files by their stems, where __ separates folders, and return the first."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder / f"{next(iter(files))}.py"


NET = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4)
            self.drop = nn.{layer}

        def forward(self, x):
            return self.drop(self.body(x))
"""
EVALUATION = """
    import torch
    from {module} import Net
    from parts.data import make_loader

    def main():
        net, hits = Net(), 0
        with torch.no_grad():
            for x, y in make_loader(32):
                hits += (net(x).argmax(1) == y).sum().item()
        print(hits)

    if __name__ == "__main__":
        main()
"""
DATA = """
    from torch.utils.data import DataLoader

    def make_loader(size):
        return DataLoader(open_set(), batch_size=size)
"""


@pytest.mark.parametrize(("layer", "rules"), [("Dropout(0.5)", ["missing-eval"]), ("Tanh()", [])])
def test_modules_of_the_scripts_own_folder_are_read(tmp_path, layer, rules):
    script = write(
        tmp_path,
        train=EVALUATION.format(module="model"),
        model="from parts.net import *",
        parts__net=NET.format(layer=layer),
        parts__data=DATA,
    )
    assert [finding.rule for finding in read_script(script)] == rules


def test_a_mistake_in_a_module_is_reported_with_its_file_after_those_of_the_script(tmp_path):
    script = write(
        tmp_path,
        train="""
            import torch
            import helpers

            # the module's mistake is further up in its file
            net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
            helpers.fit(net, torch.utils.data.DataLoader(helpers.rows()))
            """,
        helpers="""
            def fit(net, loader):
                for x, y in loader:
                    x.cuda()
                    net(x).sum().backward()
            """,
    )
    found = [(finding.file.name, finding.rule, finding.line) for finding in read_script(script)]
    assert found == [("train.py", "data-parallel", 6), ("helpers.py", "discarded-move", 4)]


@pytest.mark.parametrize(
    ("device", "rules"),
    [
        ('"cpu"', []),
        ('"cuda"', []),  # without a GPU the script fails in any case
        ('"cuda" if torch.cuda.is_available() else "cpu"', ["map-location"]),
        ('"cuda"; local_rank = 0', ["map-location"]),  # several processes
    ],
)
def test_where_weights_go_matters_only_where_there_is_a_choice(tmp_path, device, rules):
    script = write(
        tmp_path,
        train=f"""
            import os, torch
            device = {device}
            net = torch.nn.Linear(2, 2).to(device)
            net.load_state_dict(torch.load("net.pt"))
            """,
    )
    assert [finding.rule for finding in read_script(script)] == rules


def test_a_module_that_cannot_be_read_is_ignored(tmp_path):
    script = write(tmp_path, train="import torch, broken\nbroken.go()\n", broken="def go(:\n")
    assert read_script(script) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"import torch\nfor x in loader\n    pass\n", r"train\.py, line 2: .*expected ':'"),
        (b"import torch\nx = '\xff'\n", "train.py is not (UTF-8 text|a Python script)"),
        (b"# coding: nonsense\n", "train.py is not a Python script"),
        (b"x = 1\0\n", r"train\.py"),
    ],
)
def test_invalid_python_is_reported_with_its_file(tmp_path, content, words):
    script = tmp_path / "train.py"
    script.write_bytes(content)
    with pytest.raises(ReadError, match=words):
        read_script(script)


def test_a_script_that_does_not_exist(tmp_path):
    with pytest.raises(ReadError, match=r"train\.py cannot be read: No such file"):
        read_script(tmp_path / "train.py")
    with pytest.raises(ReadError, match="cannot be read"):
        read_script(tmp_path)


FAULT = "import torch\nfarbe = 'grün'; net = torch.nn.DataParallel(farbe); net.eval()\n"
TRAINS = "for x in train_loader:\n    net(x).sum().backward()\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + (FAULT + TRAINS).encode(),
        ("# -*- coding: latin-1 -*-\n" + FAULT + TRAINS).encode("latin-1"),
        (FAULT + TRAINS).replace("\n", "\r\n").encode(),
        ("pattern = '\\d'\n" + FAULT + TRAINS).encode(),
    ],
    ids=["byte order mark", "coding line", "CRLF", "escape"],
)
def test_encodings_and_line_ends(tmp_path, content):
    script = tmp_path / "train.py"
    script.write_bytes(content)
    (finding,) = read_script(script)
    rank = 'device_ids=[int(os.environ["LOCAL_RANK"])]'
    assert finding.fixed == f"net = torch.nn.parallel.DistributedDataParallel(farbe, {rank})"


def test_long_and_deep_scripts_cause_no_recursion_error(tmp_path):
    steps = "\n".join(f"step_{n} = step_{n - 1} + {n}" for n in range(1, 2000))
    total = " + ".join(f"torch.ones({n})" for n in range(1, 400))
    branches = "".join(f"    elif a == {n}:\n        b = a\n" for n in range(200))
    calls = "\n".join(f"def f{n}(x):\n    return f{n - 1}(f{n - 1}(x))" for n in range(1, 300))
    lines = [
        "import torch",
        steps,
        f"def choose(a):\n    if a:\n        pass\n{branches}    return b",
        calls,
        f"x = {total}",
        "x.cuda()",
        "print(x)",
        "for y in f299(1):\n    y.cuda()\n    print(y)",
    ]
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    assert script.read_text(encoding="utf-8").count("\n") > 3000
    assert [finding.rule for finding in read_script(script)] == ["discarded-move"]


@pytest.mark.parametrize(
    "line",
    [
        "first, *rest, a, b, c = accelerator.prepare(net, loader)",
        "for *rest, a, b, c in zip(xs, *ys):",
        "for *rest, a in zip():",
        "def f(x): return x\n*rest, a = f(0)\ntorch.nn.functional.cross_entropy(a, 0)",
    ],
)
def test_more_targets_than_arguments_cause_no_index_error(tmp_path, line):
    script = tmp_path / "train.py"
    body = "    pass\n" if line.endswith(":") else ""
    script.write_text(f"import torch\n{line}\n{body}a.cuda()\nprint(a)\n")
    assert [finding.rule for finding in read_script(script)] in ([], ["discarded-move"])


def test_an_async_for_may_train(tmp_path):
    script = write(
        tmp_path,
        train="""
            import torch
            net = torch.nn.Linear(2, 2)

            async def main():
                async for x in stream():
                    net(x).sum().backward()
            """,
    )
    assert read_script(script) == []


def test_reading_needs_neither_torch_nor_the_scripts_own_imports():
    code = (
        "import sys, pathlib; from onsight_lint.read import read_script;"
        f"read_script(pathlib.Path({str(HERE / 'planted' / 'no_eval.py')!r}));"
        "print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_standard_library_is_imported():
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                imported.add(node.module.partition(".")[0])
    assert "ast" in imported
    assert imported - sys.stdlib_module_names == {"onsight_lint"}


def trace(folder, text, line):
    """Return the code of the origins of the expression in a line."""
    script = Script(write(folder, train=text))
    statement = script.sources[0].tree.body[line]
    return [script.code(origin.node) for origin in Values(script).origins(statement.value)]


def test_a_search_that_reached_its_limit_leaves_later_ones_complete(tmp_path):
    chain = ["a0 = load()", *(f"a{n} = a{n - 1}" for n in range(1, 61))]
    script = Script(write(tmp_path, train="\n".join(chain)))
    values = Values(script)
    assignments = script.sources[0].tree.body
    assert values.origins(assignments[60].value) == []
    (origin,) = values.origins(assignments[20].value)
    assert script.code(origin.node) == "load()"


@pytest.mark.parametrize(
    ("item", "origins"),
    [("[*a, b][1]", ["[*a, b][1]"]), ("[b, *a][0]", ["old()"])],
)
def test_the_item_of_a_list_with_a_star_is_traced_only_if_its_index_is_known(
    tmp_path, item, origins
):
    assert trace(tmp_path, f"b = old()\na = new()\nc = {item}", 2) == origins
