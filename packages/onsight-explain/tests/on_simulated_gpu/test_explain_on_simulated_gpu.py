"""`onsight-explain SCRIPT.py --simulate-gpu` has to name the faults planted in scripts."""

import json

import pytest

from onsight_explain.cli import main
from onsight_explain.devices import can_register_python_device

needs_newer_torch = pytest.mark.skipif(
    not can_register_python_device(),
    reason="this torch cannot register a device that is written in Python",
)

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(256, 4), torch.randint(0, 2, (256,)))
loader = DataLoader(data, 16, shuffle=True, num_workers=2, pin_memory=True)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
total = torch.zeros((), device=device)
for inputs, labels in loader:
    inputs = inputs.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()
open("model.txt", "w").write("the script went on")
"""


@pytest.fixture
def explained(tmp_path, capsys, monkeypatch):
    """Explains the script with some text replaced: (exit code, facts)."""
    monkeypatch.chdir(tmp_path)

    def explain(*replacements):
        text = SCRIPT
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        script = tmp_path / "train.py"
        script.write_text(text)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as ended:
            main([str(script), "--simulate-gpu", "--json"])
        assert sorted(tmp_path.iterdir()) == before
        return ended.value.code, json.loads(capsys.readouterr().out)

    return explain


def line_of(text):
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


@needs_newer_torch
def test_a_sound_script_has_no_waits(explained):
    code, facts = explained()
    assert code == 0
    assert facts["is_sound"]
    assert facts["steps"] == 10
    assert facts["waits"] == []
    assert 15 < facts["launches_per_step"] < 30
    assert "never waits" in facts["verdict"]


@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_waits_are_counted_at_their_lines_with_what_to_write_instead(explained):
    code, facts = explained(
        ("total += loss.detach()", "total += loss.item()"),
        ("labels.to(device, non_blocking=True)", "labels.cuda()"),
        (", pin_memory=True", ""),
    )
    assert code == 0
    found = {(one["line"], one["per_step"]): one["instead"] for one in facts["remedies"]}
    assert set(found) == {
        (line_of("inputs = inputs.to"), 1.0),
        (line_of("labels = labels.to"), 1.0),
        (line_of("total += loss"), 1.0),
    }
    assert "every 100 steps" in found[line_of("total += loss"), 1.0]
    assert "pin_memory=True" in found[line_of("labels = labels.to"), 1.0]


@needs_newer_torch
@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("labels = labels.to", "labels_ = labels.to", "loss = nn", "same device"),
        pytest.param(
            *("total += loss.detach()", "total += loss.detach().numpy()", "total +=", "numpy"),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["a tensor left behind", "numpy of a tensor on the GPU"],
)
@pytest.mark.usefixtures("forked")
def test_what_fails_on_a_gpu_is_an_error_at_its_line(explained, old, new, at, message):
    code, facts = explained((old, new))
    assert code == 1
    assert facts["failure"]["site"]["line"] == line_of(at)
    assert message in facts["failure"]["message"]
    assert facts["verdict"] == "train.py fails on a GPU"


@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_a_script_that_stays_on_the_cpu_never_uses_the_gpu(explained):
    code, facts = explained(('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'))
    assert code == 1
    assert "never uses the GPU" in facts["verdict"]


@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_a_buffer_that_is_changed_while_it_is_copied_is_a_fault(explained):
    code, facts = explained(
        ("for inputs, labels in loader:", "for batch, labels in loader:\n    inputs = batch"),
        ("    optimizer.step()", "    optimizer.step(); batch.zero_()"),
    )
    assert code == 1
    assert "page-locked memory was changed" in facts["faults"][0]


@needs_newer_torch
@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("[][0]", "IndexError"),
        pytest.param("raise SystemExit('no DATA')", "no DATA", marks=pytest.mark.soak),
    ],
)
@pytest.mark.usefixtures("forked")
def test_a_script_that_fails_by_itself_is_not_the_gpus_fault(tmp_path, capsys, new, message):
    (tmp_path / "train.py").write_text(f"print('began')\n{new}\n")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "train.py"), "--simulate-gpu"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.soak
@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_memory_is_that_of_a_large_gpu(explained):
    code, facts = explained(
        ("loss.backward()", "loss.backward(); torch.empty(1 << 29, device='cuda')")
    )
    assert (code, facts["failure"]) == (0, None)


@pytest.mark.soak
@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_a_second_optimizer_updates_within_the_same_step(explained):
    code, facts = explained(
        ("total = torch", "other = torch.optim.SGD(net.parameters(), 0.1)\ntotal = torch"),
        ("    optimizer.step()", "    optimizer.step(); other.step(); labels.sum().item()"),
    )
    assert code == 0
    assert [one["per_step"] for one in facts["remedies"]] == [1.0]


@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_too_few_steps_prove_nothing_and_a_script_that_goes_on_changes_no_file(explained, tmp_path):
    (tmp_path / "model.txt").write_text("the user's")
    code, facts = explained(("randn(256, 4)", "randn(16, 4)"), ("2, (256,)", "2, (16,)"))
    assert code == 1
    assert "too few steps" in facts["verdict"]
    assert (tmp_path / "model.txt").read_text() == "the user's"
    assert facts["unchanged_files"] == [str(tmp_path / "model.txt")]


@pytest.mark.soak
@needs_newer_torch
@pytest.mark.usefixtures("forked")
def test_a_full_disk_is_not_the_gpus_fault(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("raise OSError(28, 'No space left on device')\n")
    with pytest.raises(SystemExit) as ended:
        main([str(script), "--simulate-gpu"])
    assert ended.value.code == 2
    assert "No space left" in capsys.readouterr().err


def test_only_scripts_run_on_the_simulated_gpu(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), "--simulate-gpu"])
    assert ended.value.code == 2
    assert "not a Python file" in capsys.readouterr().err


def test_a_torch_that_is_too_old_is_one_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "onsight_explain.on_simulated_gpu.explain.can_register_python_device", lambda: False
    )
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with pytest.raises(SystemExit) as ended:
        main([str(script), "--simulate-gpu"])
    assert ended.value.code == 2
    assert "--simulate-gpu needs a newer torch than" in capsys.readouterr().err
