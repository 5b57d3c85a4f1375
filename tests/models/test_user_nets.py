"""A user's own networks, written into a folder and named as package.module:callable."""

import importlib
import sys

import pytest
import torch
from torch import nn

from onsight.errors import ModelError
from onsight.models.catalog import make_model
from onsight.models.user import make_user_model

SHAPE = (1, 12, 10)
K = 4

NETS = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, num_classes, in_channels, image_size):
        super().__init__()
        self.given = (num_classes, in_channels, image_size)
        self.flat = nn.Linear(in_channels * image_size[0] * image_size[1], num_classes)

    def forward(self, x):
        return self.flat(x.flatten(1))

def by_shape(shape, classes, depth=1):
    c, h, w = shape
    return Linear(classes, c, (h, w))

def by_chans(in_chans, *, classes):
    return Linear(classes, in_chans, (12, 10))

def anything(**given):
    assert given == {"num_classes": 4}, given
    return nn.Sequential(nn.Flatten(), nn.Linear(120, 4))

ready = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
whole = nn.Sequential(nn.Flatten(), nn.Linear(120, 4))
number = 7

class Plain(nn.Module):
    def forward(self, x): return x.flatten(1)[:, :4]

def needs_depth(num_classes, depth): return None
def gives_nothing(): return None
def seven(): return nn.Sequential(nn.Flatten(), nn.Linear(120, 7))
def maps(): return nn.Conv2d(1, 4, 3)
def fails(): raise RuntimeError("no weights on the shelf")

class Pair(nn.Module):
    def forward(self, x): return x, x

class Scores(nn.Linear):
    def __init__(self): super().__init__(120, 4)
    def forward(self, x): return super().forward(x.flatten(1))

class Integers(Scores):
    def forward(self, x): return super().forward(x).long()

class Stateless(Scores):
    def state_dict(self, *given, **named): return {}

class Exits(Scores):
    def forward(self, x): raise SystemExit(0)

def unfilled(): return Scores().to("meta")
def exits(): raise SystemExit(0)

class WrongChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x): return self.conv(x)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynets.py").write_text(NETS)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "script.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "lacking.py").write_text("import a_library_that_is_not_there\n")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["Linear", "by_shape", "by_chans", "anything", "ready", "whole", "Plain"]
)
def test_classes_functions_and_modules(folder, name):
    net = make_model(f"mynets:{name}", SHAPE, K)
    assert net(torch.zeros(3, *SHAPE)).shape == (3, K)
    assert net.training


def test_it_gets_the_facts_that_it_names(folder):
    assert make_user_model("mynets:Linear", SHAPE, K).given == (K, 1, (12, 10))


def test_a_module_inside_a_package(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "nets.py").write_text(NETS)
    assert make_user_model("inner.nets:Linear", SHAPE, K).given[0] == K


def test_a_ready_module_is_copied(folder):
    first = make_user_model("mynets:whole", SHAPE, K)
    with torch.no_grad():
        first[1].weight.fill_(9)
    second = make_user_model("mynets:whole", SHAPE, K)
    assert not (second[1].weight == 9).any()


def test_the_folder_is_importable_during_the_import_only(folder):
    path = list(sys.path)
    make_user_model("mynets:Linear", SHAPE, K)
    assert sys.path == path
    with pytest.raises(ModelError):
        make_user_model("broken:Net", SHAPE, K)
    assert sys.path == path
    (folder / "another.py").write_text("")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("another")


def test_installed_modules_come_before_those_of_the_folder(folder, monkeypatch):
    (folder / "wave.py").write_text(NETS)  # as a module of the standard library
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    with pytest.raises(ModelError, match=r"module 'wave' \(.*lib.*wave.py\) has no 'Linear'"):
        make_user_model("wave:Linear", SHAPE, K)


def test_a_folder_that_is_importable_anyway_stays_where_it_is(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    path = list(sys.path)
    make_user_model("mynets:Linear", SHAPE, K)
    assert sys.path == path


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere:Net", "there is no module 'nowhere'"),
        ("mynets.deeper:Net", "there is no module 'mynets.deeper'"),
        ("mynets.py:Linear", "names a file.*'mynets:Linear'"),
        ("nets/mynets.py:Linear", "names a file.*'mynets:Linear'"),
        ("mynets:", "not of the form"),
        (":Net", "not of the form"),
        ("a b:Net", "not of the form"),
        ("mynets:Linaer", "has no 'Linaer'.*Did you mean Linear"),
        ("broken:Net", "importing 'broken' raised ZeroDivisionError: division by zero"),
        ("lacking:Net", "importing 'lacking' raised ModuleNotFoundError: .*a_library_that"),
        ("mynets:fails", "calling 'mynets:fails' .*RuntimeError: no weights on the shelf"),
        ("mynets:number", "is a int, not an nn.Module"),
        ("mynets:needs_depth", "needs depth, which Onsight does not have.*num_classes"),
        ("mynets:gives_nothing", "returns a NoneType, not a torch.nn.Module"),
        ("mynets:seven", "returns 7 numbers per image, but the data has 4 classes"),
        ("mynets:maps", r"shape \(2, 4, 10, 8\); it must be \(2, 4\)"),
        ("mynets:Pair", "returns a tuple"),
        ("mynets:WrongChannels", "cannot process images of 12x10 with 1 channel"),
        ("mynets:Integers", r"returns torch.int64; it must return floating-point numbers"),
        ("mynets:unfilled", "is on the device meta"),
        ("mynets:Stateless", r"its state_dict\(\) has no tensor 'weight'"),
        ("mynets:Exits", "cannot process images .*: SystemExit: 0"),
        ("mynets:exits", "calling 'mynets:exits' .*raised SystemExit: 0"),
        ("script:Net", "importing 'script' raised SystemExit: 0"),
    ],
)
def test_what_is_wrong_is_explained(folder, spec, message):
    with pytest.raises(ModelError, match=message):
        make_user_model(spec, SHAPE, K)


STILL = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        held, free = nn.BatchNorm1d(120).eval(), nn.BatchNorm1d(120)
        super().__init__(nn.Flatten(), held, free, nn.Linear(120, 4))

    def forward(self, images):
        return super().forward(images) + torch.rand(4)
"""


def test_the_check_leaves_modes_statistics_and_random_state(folder):
    (folder / "still.py").write_text(STILL)
    torch.manual_seed(2)
    net = make_user_model("still:Net", SHAPE, K)
    after = torch.rand(3)
    assert [module.training for module in net] == [True, False, True, True]
    assert net.training
    assert int(net[2].num_batches_tracked) == 0
    torch.manual_seed(2)
    nn.Linear(120, 4)
    assert torch.equal(after, torch.rand(3))
