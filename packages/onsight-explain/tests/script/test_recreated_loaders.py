"""Changes reach the loaders of a library that saves their arguments and creates them again."""

import pytest

from onsight_explain.process.bench import ScriptBench
from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.loading import Workers

# As Lightning does: it wraps the constructor for a while, reads its signature, puts it back.
LIBRARY = """
import functools
import inspect
from contextlib import contextmanager
from torch.utils.data import DataLoader

@contextmanager
def arguments_saved():
    original = DataLoader.__init__
    names = list(inspect.signature(original).parameters)[1:]
    @functools.wraps(original)
    def init(loader, *args, **kwargs):
        loader.saved = dict(zip(names, args)) | kwargs
        original(loader, *args, **kwargs)
    DataLoader.__init__ = init
    yield
    DataLoader.__init__ = original
"""
SCRIPT = """
import sys
sys.path.append(sys.argv[1])
import torch
from library import arguments_saved
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), 0.1)

data = TensorDataset(torch.randn(64, 3), torch.zeros(64, dtype=torch.long))
net = nn.Linear(3, 2)
{before}
with arguments_saved():
    loader = DataLoader(data, batch_size=8)
    judging = DataLoader(data, batch_size=8)
{after}
while True:
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for images, labels in judging:
            net(images)
"""
MAKE = "optimizer = optimizer_of(net)"
ANEW = "loader = DataLoader(**(loader.saved | {'sampler': SequentialSampler(data)}))"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(MAKE, ANEW, id="forked at the optimizer", marks=pytest.mark.soak),
        pytest.param("", MAKE, id="forked at the loader", marks=pytest.mark.soak),
        pytest.param("", f"{MAKE}\n{ANEW}", id="forked at the first of two loaders"),
    ],
)
@pytest.mark.usefixtures("forked")
def test_the_loader_that_is_trained_from_has_the_change(tmp_path, before, after):
    """Once in the process that is measured on, though the training loader draws nothing."""
    packages, script = tmp_path / "site-packages", tmp_path / "train.py"
    packages.mkdir()
    (packages / "library.py").write_text(LIBRARY)
    script.write_text(SCRIPT.replace("{before}", before).replace("{after}", after))
    with Processes(script, [str(packages)], 10**9, 60.0) as processes:
        bench = ScriptBench(processes)
        trace, _ = bench.watch(0.3)
        assert (trace.loader.batch_size, trace.loader.workers) == (8, 0)
        bench.rate = 0.0  # a busy machine must not end a trial before its first evaluation
        for changes in ((LargerBatch(2, 16),), (Workers(1),)):
            trial = bench.open(changes)
            assert trial.measure(0.5) > 0  # raises Untried if the change does not show
            trial.close()
            assert trial.first.evaluation_loader.batch_size == 8
        assert processes.forget_servers()  # it could be forked
