"""Batches copied ahead to the GPU, in the script's text."""

from contextlib import nullcontext

import pytest
import torch

SCRIPT = """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, 4)
for epoch in range(2):
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device, non_blocking=True)
        loss = network(images).sum()
"""
CUDA = SCRIPT.replace(".to(device)", ".cuda()").replace(".to(device, non_", ".cuda(non_")


@pytest.mark.parametrize(("source", "device"), [(SCRIPT, "device"), (CUDA, '"cuda"')])
def test_the_loop_draws_from_a_class_that_copies(script, traced, source, device):
    written = script(source)
    found = written.fix(traced(written.call("DataLoader"), written.call("network")), prefetch="")
    text = found.after.decode()
    assert f"in enumerate(CopiedAhead(loader, {device})):" in text
    assert "DataLoader(data, 4, pin_memory=True)" in text
    assert text.count("class CopiedAhead:") == 1
    assert not any(one.left for one in found.lines)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", labels.to(device, non_blocking=True)", ", labels"),  # stays on the CPU
        ("labels.to(device", "labels.to(other"),
        ("images.to(device)", "images.to(device if step else other)"),
        ("step, (images, labels) in enumerate(loader)", "images, *labels in loader"),
        ("enumerate(loader)", "enumerate([batch for batch in loader])"),
    ],
)
def test_where_it_is_not_certain_it_is_left_as_a_comment(script, traced, old, new):
    assert old in SCRIPT
    written = script(SCRIPT.replace(old, new))
    found = written.fix(traced(written.call("DataLoader"), written.call("network")), prefetch="")
    text = found.after.decode()
    assert "# To do: copy the next batch in a separate stream" in text
    assert "# To do: DataLoader(..., pin_memory=True)" in text
    assert "class CopiedAhead" not in text
    assert "\nloader = DataLoader(data, 4)\n" in text


class Streams:
    """torch.cuda's streams, which only note what is asked of them."""

    def __init__(self):
        self.said = []

    def wait_stream(self, other):
        self.said.append("wait")

    def to(self, part):
        self.said.append(f"copy {part.item():.0f}")
        return part


def test_each_batch_is_copied_while_the_one_before_it_is_in_use(script, traced, monkeypatch):
    written, streams = script(SCRIPT), Streams()
    found = written.fix(traced(written.call("DataLoader"), written.call("network")), prefetch="")
    names = {}
    text = found.after.decode()
    exec(text[: text.index("loader = ")], names)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "to", lambda part, device, non_blocking: streams.to(part))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: streams.said.append("record"))
    batches = [[torch.tensor(float(one))] for one in range(3)]
    ahead = iter(names["CopiedAhead"](batches, "cuda:0"))
    assert next(ahead) == batches[0]
    assert streams.said == ["copy 0", "wait", "record", "copy 1"]
    assert list(ahead) == batches[1:]
    assert len(names["CopiedAhead"](batches, "cuda:0")) == 3
    plain = names["CopiedAhead"](batches, "cpu")  # where the script has found no GPU
    assert list(plain) == batches
    assert plain.index(batches[1]) == 1  # what the loader has besides
