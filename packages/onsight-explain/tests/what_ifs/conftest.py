"""A script as it was traced, and what-ifs in force until a test ends."""

import ast
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import ItemFacts, LoaderFacts, Trace
from onsight_explain.tracing.clock import PHASES
from onsight_explain.tracing.patches import Patches
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Baseline, make_what_ifs

SITE = Site(file="/home/user/train.py", line=7)


@pytest.fixture
def baseline():
    """A function that returns a script traced on the CPU; any of its facts can be changed."""

    def make(source="", loader=None, item=None, waits=0.5, **facts):
        plain = {
            "batch_size": 32,
            "workers": 0,
            "is_pinned": False,
            "is_persistent": False,
            "is_shuffled": True,
            "items": 1000,
        }
        item_plain = {
            "seconds": 0.002,
            "waiting_share": 0.0,
            "transform_share": 0.1,
            "is_random": False,
            "item_bytes": 3000,
        }
        phases = dict.fromkeys(PHASES, 0.0) | {"data": 10 * waits, "forward": 10 * (1 - waits)}
        trace = Trace(
            ended="window",
            startup_seconds=3.0,
            seconds=10.0,
            steps=100,
            images=3200,
            phases=phases,
            loader=LoaderFacts(site=SITE, **(plain | (loader or {}))),
            item=ItemFacts(**(item_plain | (item or {}))),
            threads=2,
        )
        return Baseline(replace(trace, **facts), ast.parse(source), 4)

    return make


@pytest.fixture
def apply():
    """A function that puts what-ifs in force, by name and value, and returns the hooks.

    evaluates: whether no update follows a forward now.
    """
    patches, threads = Patches(), torch.get_num_threads()

    def put(evaluates=lambda: False, **changes):
        hooks = Hooks(patches, lambda: False, evaluates)
        for what_if in make_what_ifs(changes):
            what_if.install(hooks)
        hooks.install()
        return hooks

    yield put
    patches.undo()
    torch.set_num_threads(threads)


@pytest.fixture
def numbers():
    """A function that returns a data set of so many numbers."""

    def make(count=64):
        return TensorDataset(torch.arange(float(count)).view(-1, 1), torch.zeros(count))

    return make
