"""What-ifs reach the loaders that libraries make, once; and a change that is overruled is told."""

import sys
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from onsight_explain.what_ifs.batch import LargerBatch
from onsight_explain.what_ifs.caching import Cache
from onsight_explain.what_ifs.loading import Workers
from onsight_explain.what_ifs.precision import Bf16

STREAM = {"items": None, "has_items": False}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(64.0))


def test_a_copy_of_a_changed_loader_is_not_changed_again(apply, numbers):
    apply(batch_factor=4)
    own = DataLoader(numbers(512), batch_size=16, shuffle=True)
    copied = DataLoader(own.dataset, batch_sampler=own.batch_sampler)
    assert copied.batch_sampler.batch_size == 64
    stream = Stream()
    streamed = DataLoader(stream, batch_size=8)
    assert streamed.batch_size == 32
    assert DataLoader(stream, batch_size=streamed.batch_size).batch_size == 32
    assert DataLoader(stream, batch_size=8).batch_size == 32  # the user's own, made anew


def test_items_are_kept_once_when_a_library_copies_the_loader(apply, numbers):
    apply(cache="items")
    own = DataLoader(numbers(64), batch_size=16, shuffle=True)
    copied = DataLoader(own.dataset, batch_sampler=own.batch_sampler, collate_fn=own.collate_fn)
    assert copied.dataset is own.dataset
    assert sorted(torch.cat([batch[0] for batch in copied]).flatten().tolist()) == list(range(64))


def test_larger_batches_of_a_stream(apply, baseline):
    trace = baseline(loader=STREAM | {"batch_size": 16})
    assert [one.size for one in LargerBatch.candidates(trace)] == [64, 256]
    assert LargerBatch.candidates(baseline(loader=STREAM | {"batch_size": None})) == []


def test_a_stream_is_not_kept(baseline):
    assert Cache.candidates(baseline(loader=STREAM)) == []
    assert Cache.candidates(baseline()) != []


@pytest.mark.parametrize(("most", "counts"), [(None, [1, 2, 4]), (3, [1, 2]), (1, [1])])
def test_no_more_workers_than_have_work(baseline, most, counts):
    found = Workers.candidates(baseline(loader=STREAM | {"most_workers": most}))
    assert [one.value for one in found] == counts


@pytest.mark.parametrize(
    ("what_if", "facts", "loader"),
    [
        (Workers(2), {}, {"workers": 2}),
        (LargerBatch(4, 128), {}, {"batch_size": 128}),
        (Bf16(True), {"precision": "bf16"}, {}),
    ],
)
def test_a_change_that_is_overruled_is_told(baseline, what_if, facts, loader):
    assert what_if.took_effect(baseline(loader=loader, **facts).trace)
    assert not what_if.took_effect(baseline().trace)


class LikeFastai:
    """A loader that is not torch's, with fastai's words for its arguments."""

    def __init__(self, dataset=None, bs=None, num_workers=0, shuffle=False, **kwargs):
        self.dataset, self.bs, self.num_workers, self.shuffle = dataset, bs, num_workers, shuffle
        self.kwargs = kwargs


def test_loaders_of_fastai_are_changed_when_it_is_imported(apply, monkeypatch):
    module = ModuleType("fastai.data.load")
    module.DataLoader = LikeFastai
    monkeypatch.setitem(sys.modules, "fastai.data.load", module)
    apply(workers=2, batch_factor=4)
    training = LikeFastai([1, 2] * 100, bs=16, shuffle=True, device="cpu")
    assert (training.bs, training.num_workers, training.shuffle) == (64, 2, True)
    assert training.kwargs["device"] == "cpu"
    judging = LikeFastai([1, 2], batch_size=16)
    assert (judging.bs, judging.num_workers) == (16, 2)
