"""Oracle: the same lines are reported where they can run, and not where they cannot."""

import textwrap

import pytest

from onsight_lint.read import read_script

WRAPPED = "net = torch.nn.DataParallel(torch.nn.Linear(2, 2))"


def rules(folder, text, **modules):
    """Return the rules that a script breaks, with the modules beside it."""
    for name, content in {"train": text, **modules}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(content), encoding="utf-8")
    return [finding.rule for finding in read_script(folder / "train.py")]


def test_the_main_part_of_a_module_runs_only_when_it_is_the_script(tmp_path):
    main = f"import torch\nif __name__ == '__main__':\n    {WRAPPED}\n"
    trains = "net.train()\nfor x in train_loader:\n    net(x).sum().backward()\n"
    assert rules(tmp_path, main + trains) == ["data-parallel"]
    assert (
        rules(tmp_path, f"import torch, tool\nnet = torch.nn.Flatten()\n{trains}", tool=main) == []
    )


@pytest.mark.parametrize(
    ("end", "found"), [("pass", True), ("return", False), ("raise OSError", False)]
)
def test_what_follows_the_end_of_a_block_is_not_read(tmp_path, end, found):
    text = f"import torch\ndef go():\n    {end}\n    {WRAPPED}\n    net(1).sum().backward()\ngo()\n"
    assert bool(rules(tmp_path, text)) is found


def test_a_loop_goes_on_after_a_break_in_one_of_its_branches(tmp_path):
    text = """
        import torch
        net = torch.nn.Linear(2, 2)
        total = 0
        for x in train_loader:
            if x is None:
                break
            loss = torch.nn.functional.mse_loss(net(x), x)
            loss.backward()
            total += loss
    """
    assert rules(tmp_path, text) == ["graph-kept"]


@pytest.mark.parametrize(
    ("backward", "is_certain"),
    [
        ("loss.backward()", True),
        ("scaler.scale(loss.mean()).backward()", True),
        ("accelerator.backward(loss)", True),
        ("loss.backward(retain_graph=True)", False),
        ("(loss.detach() * net(x).mean()).backward()", False),
        ("loss.backward()\n    loss = torch.nn.functional.mse_loss(net(x), x)", False),
    ],
)
def test_a_kept_loss_is_detached_only_where_its_graph_was_freed(tmp_path, backward, is_certain):
    """What it is added to may be used as a tensor elsewhere, or even for gradients."""
    text = f"""
import torch
net = torch.nn.Linear(2, 2)
history = []
for x in train_loader:
    loss = torch.nn.functional.mse_loss(net(x), x)
    {backward}
    history.append(loss)
finish(history)
"""
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    (finding,) = read_script(tmp_path / "train.py")
    assert finding.rule == "graph-kept"
    assert [change.text for change in finding.changes] == ["loss.detach()"] * is_certain
