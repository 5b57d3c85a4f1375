"""Oracle: comments planted where a mistake is, where none is, and beside others."""

import textwrap

import pytest

from onsight_lint.read import select_rules
from onsight_lint.read_many import fix_many, read_many
from onsight_lint.script import Library

TRAINS = """\
import torch
from torch import nn
net = nn.Linear(2, 2)
for x in loader:
    net(x).sum().backward(){end}
    x.cuda(){moved}
    net(x)
"""
ID = "discarded-move"


def write(folder, **texts):
    """Write files by their stems, and return all of the folder by name."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return sorted(folder.glob("*.py"))


@pytest.mark.parametrize(
    ("comment", "after"),
    [
        ("  # onsight: ignore", ""),
        ("  # onsight: ignore because of the network", ""),
        (f"  # noqa # onsight: ignore[{ID}]", "  # noqa"),
        (f"  # onsight: ignore[{ID}] # noqa", "  # noqa"),
        (f"  # onsight: ignore[{ID}, graph-kept, {ID}]", ""),
        (f"  # onsight: ignore[{ID}, nonsense, unused-ignore]", None),
        (f"  # onsight: ignore-file[graph-kept, {ID}]", f"  # onsight: ignore-file[{ID}]"),
        (f"\n    # onsight: ignore[{ID}]", ""),
        ("  # onsight: ignore[nonsense]", ""),
    ],
)
def test_what_silences_nothing_is_removed_and_nothing_else(tmp_path, comment, after):
    silenced = f"  # onsight: ignore[{ID}]" if "ignore-file" not in comment else ""
    files = write(tmp_path, train=TRAINS.format(end=comment, moved=silenced))
    (left,) = (
        fix_many(files, select_rules())[0].values() if after is not None else [files[0].read_text()]
    )
    expected = comment if after is None else after
    assert left == TRAINS.format(end=expected, moved=silenced)


def test_only_rules_that_were_applied_are_considered(tmp_path):
    text = TRAINS.format(end="  # onsight: ignore[graph-kept]", moved="  # onsight: ignore")
    files = write(tmp_path, train=text)
    assert len(read_many(files, Library(), select_rules()).findings) == 1
    for select in ("unused-ignore", f"{ID},unused-ignore", "graph-kept"):
        assert not read_many(files, Library(), select_rules(select)).findings
    assert len(read_many(files, Library(), select_rules("graph,unused-ignore")).findings) == 1


def test_a_comment_in_a_module_is_checked_against_all_scripts_that_import_it(tmp_path):
    """What is silenced when one script runs the module is used, whatever other scripts run."""
    net = """
        from torch import nn
        class Net(nn.Module):
            def forward(self, x):
                return nn.functional.softmax(x, 1)  # onsight: ignore[{}]
    """
    trains = """
        import torch
        from net import Net
        net = Net()
        for x, y in loader:
            torch.nn.{}()(net(x), y).backward()
    """
    softmax = "softmax-before-cross-entropy"
    modules = {"net": net.format(softmax), "scores": trains.format("NLLLoss")}
    alone = write(tmp_path, **modules)[:1]
    assert not read_many(
        alone, Library(), select_rules()
    ).findings  # the scripts that import it are unknown
    files = write(tmp_path, **modules)
    assert {finding.rule for finding in read_many(files, Library(), select_rules()).findings} == {
        "unused-ignore"
    }
    files = write(tmp_path, **modules, train=trains.format("CrossEntropyLoss"))
    assert not read_many(files, Library(), select_rules()).findings
