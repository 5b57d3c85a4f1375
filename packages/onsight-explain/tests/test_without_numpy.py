"""A script explained where only torch and rich are installed."""

import os
import subprocess
import sys

ABSENT = ("onsight", "numpy", "PIL", "torchvision", "pydantic", "cyclopts")
# Read by every Python that finds it on its path: by `explain` and by the processes that it starts.
SITE = f"""
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(name, *args):
    return None if name.partition(".")[0] in {ABSENT} else find(name, *args)

PathFinder.find_spec = find_others
"""
TRAINS = """
import random
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return index % 2, torch.full((3,), random.random())

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
while True:
    for labels, images in DataLoader(Numbers(), 4, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
"""
EXPLAINS = f"""
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from rich.console import Console

import onsight_explain

for module in walk_packages(onsight_explain.__path__, "onsight_explain."):
    import_module(module.name)

from onsight_explain.diagnosis import explain
from onsight_explain.diagnosis.show import facts, print_explanation

explain.measure_ceilings = lambda *_: None
found = explain.explain_script(Path(sys.argv[1]), [], 3.0, try_changes=False)
item = facts(found)["trace"]["item"]
assert item["is_random"] and item["item_bytes"] == 12, item
print_explanation(found, Console())
assert not [name for name in {ABSENT} if name in sys.modules]
"""


def test_neither_numpy_nor_pillow_is_needed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "train.py").write_text(TRAINS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    found = subprocess.run(
        [sys.executable, "-c", EXPLAINS, str(tmp_path / "train.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "train.py:" in found.stdout
    assert "images/s on cpu" in found.stdout
