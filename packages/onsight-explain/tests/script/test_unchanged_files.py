"""A script that ends and saves, in all kinds of processes, leaves the user's files unchanged."""

import pytest
from rich.console import Console

from onsight_explain.diagnosis.explain import explain_script
from onsight_explain.diagnosis.show import facts, print_explanation

SCRIPT = """
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

import image_files

HERE = Path(__file__).parent
with open(HERE / "starts.txt", "w") as file:  # in spawned processes, too
    file.write(__name__)


def main():
    loader = DataLoader(image_files.Images(), 4, num_workers=1, multiprocessing_context="spawn")
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    until = 0.0
    for images in loader:
        optimizer.zero_grad()
        net(images).sum().backward()
        optimizer.step()
        until = until or time.monotonic() + 0.5
        if time.monotonic() > until:
            break
    torch.save(net.state_dict(), HERE / "model.pt")
    assert torch.equal(torch.load(HERE / "model.pt")["weight"], net.weight)
    save_file(net.state_dict(), HERE / "model.safetensors")
    assert torch.equal(load_file(HERE / "model.safetensors")["weight"], net.weight)
    (HERE / "best.tmp").write_text("best")
    os.replace(HERE / "best.tmp", HERE / "best.txt")
    os.remove(HERE / "old.txt")
    assert (HERE / "best.txt").read_text() == "best" and not (HERE / "old.txt").exists()
    command = [sys.executable, HERE / "helper.py"]
    assert subprocess.check_output(command) == b"beside its own modules\\n"
    (HERE / "new.txt").write_text("all is well")


if __name__ == "__main__":
    main()
"""
BESIDE = {
    "paths.py": """
import os, sys

def sys_path_is_usual():
    return sys.path[0] == os.path.dirname(__file__)
""",
    "image_files.py": """
import torch
from torch.utils.data import Dataset
from pathlib import Path
from paths import sys_path_is_usual

class Images(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, number):
        assert sys_path_is_usual()
        (Path(__file__).parent / "worker.txt").write_text("a worker")
        return torch.ones(3)
""",
    "helper.py": """
import os, sys
import paths
assert not sys.flags.safe_path and "PYTHONSAFEPATH" not in os.environ
assert paths.sys_path_is_usual()
print("beside its own modules")
""",
}
USERS = ("model.pt", "model.safetensors", "best.txt", "old.txt", "starts.txt", "worker.txt")


@pytest.fixture
def script(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {"train.py": SCRIPT, **BESIDE}.items():
        (folder / name).write_text(text)
    for name in USERS:
        (folder / name).write_text(f"the user's {name}")
    return folder / "train.py"


def state(folder):
    return {
        name: ((folder / name).read_text(), (folder / name).stat().st_mtime_ns) for name in USERS
    }


def test_files_stay_unchanged_in_every_process_and_modules_come_from_the_scripts_folder(
    script, hostile_folder, capsys
):
    before = state(script.parent)
    found = explain_script(script, [], try_changes=False)
    assert found.trace.ended == "script"
    assert (script.parent / "new.txt").read_text() == "all is well"
    assert state(script.parent) == before
    assert [path.name for path in found.unchanged] == sorted(USERS)
    assert facts(found)["unchanged_files"] == [str(script.parent / name) for name in sorted(USERS)]
    print_explanation(found, Console(width=200))
    said = capsys.readouterr().out
    assert "Unchanged: 6 files that train.py overwrites, moves or deletes (best.txt, m" in said
    assert "and 3 more" in said
