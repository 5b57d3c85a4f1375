"""Oracle: many small pieces of scripts, each with one mistake at a marked line, or with none."""

import ast
import textwrap
from pathlib import Path

import pytest

from onsight_lint.read import read_script

PIECES = Path(__file__).parent / "pieces"

ALONE = {  # rules whose fixed lines can replace the planted one as they are
    "data-parallel",
    "discarded-move",
    "graph-kept",
    "map-location",
    "missing-no-grad",
    "softmax-before-cross-entropy",
    "whole-module-pickle",
}

HEAD = """\
import os, glob, csv, random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torchvision import datasets, models, transforms
from torch.utils.data import DataLoader, Dataset
from PIL import Image
from tqdm import tqdm
import cv2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_set = datasets.ImageFolder("a", transforms.ToTensor())
val_set = datasets.ImageFolder("b", transforms.ToTensor())
train_loader = DataLoader(train_set, shuffle=True, {settings})
val_loader = DataLoader(val_set, {settings})
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 10)
    def forward(self, x):
        x = F.relu(self.bn(self.conv(x))).mean((2, 3))
        return self.fc(x)
model = Net().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
"""


def pieces(name):
    """Yield (rule, text) of each piece of a file."""
    for piece in (PIECES / name).read_text(encoding="utf-8").split("\n=== ")[1:]:
        first, _, body = piece.partition("\n")
        rule, _, settings = first.partition(" ")
        yield rule, HEAD.format(settings=settings or "batch_size=32") + body


def read(folder, text):
    """Return the findings in a text."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return read_script(script)


def apply(text, finding):
    """Return a text with the statement of a finding replaced by its fixed lines."""
    margin = len(finding.fixed) - len(finding.fixed.lstrip())
    statement = max(
        (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)),
        key=lambda node: (
            node.lineno <= finding.line <= node.end_lineno and node.col_offset == margin,
            node.lineno,
        ),
    )
    lines = text.split("\n")
    lines[statement.lineno - 1 : statement.end_lineno] = finding.fixed.split("\n")
    return "\n".join(lines)


@pytest.mark.parametrize(("rule", "text"), list(pieces("faulty.txt")))
def test_the_mistake_of_a_piece_is_found_and_nothing_else(tmp_path, rule, text):
    lines = [n for n, line in enumerate(text.split("\n"), 1) if line.endswith("# here")]
    findings = read(tmp_path, text)
    assert [(finding.rule, finding.line) for finding in findings] == [
        (rule, line) for line in lines
    ]
    for finding in findings:
        ast.parse(textwrap.dedent(finding.fixed))


@pytest.mark.parametrize("text", [text for rule, text in pieces("faulty.txt") if rule in ALONE])
def test_a_piece_with_its_line_fixed_is_sound(tmp_path, text):
    assert text.count("# here") == 1
    line = next(line for line in text.split("\n") if line.endswith("# here"))
    text = text.replace(line, line.replace("; ", f"\n{line[: len(line) - len(line.lstrip())]}"))
    (finding,) = read(tmp_path, text)
    assert read(tmp_path, apply(text, finding)) == []


@pytest.mark.parametrize(("rule", "text"), list(pieces("sound.txt")))
def test_a_sound_piece_is_left_alone(tmp_path, rule, text):
    assert rule == "none"
    assert read(tmp_path, text) == []


def test_every_piece_was_read():
    assert len(list(pieces("faulty.txt"))) >= 159
    assert len(list(pieces("sound.txt"))) >= 156


def test_entries_of_a_folder_are_sorted_by_name(tmp_path):
    text = HEAD.format(settings="batch_size=32") + textwrap.dedent("""\
        entries = [entry for entry in os.scandir("images") if entry.is_file()]
        pairs = list(zip(entries, np.load("labels.npy")))
        """)
    (finding,) = read(tmp_path, text)
    assert "zip(sorted(entries, key=lambda entry: entry.name), np.load" in finding.fixed


SHARED = """\
flips = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
train_part = datasets.ImageFolder("a", flips)
{split}
def epoch():
    for x, y in DataLoader(train_part, 8, shuffle=True):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in DataLoader(val_part, 8):
            print(model(x).argmax(1) == y)
for number in range(3):
    epoch()
"""


@pytest.mark.parametrize(
    "split",
    [
        "train_part, val_part = torch.utils.data.random_split(train_part, [0.8, 0.2])",
        'val_part = datasets.ImageFolder("b", transform=flips)',
    ],
)
def test_a_script_with_all_corrections_that_are_shown_is_sound(tmp_path, split):
    text = HEAD.format(settings="batch_size=32") + SHARED.format(split=split)
    images, mode = read(tmp_path, text)
    assert (images.rule, mode.rule) == ("random-test-images", "missing-eval")
    assert mode.problem.endswith("model.eval() is missing, and model.train() before the training")
    text = text.replace(split, f"{split}\n{images.fixed}")
    text = text.replace("    with torch", "    model.eval()\n    with torch")
    text = text.replace("def epoch():", "def epoch():\n    model.train()")
    assert read(tmp_path, text) == []
