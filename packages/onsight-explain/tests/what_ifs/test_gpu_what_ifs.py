"""What only a GPU can show to be faster, tested at torch's border: what is asked, and when."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import callback
from torch.utils.data import DataLoader

from onsight_explain.tracing import clock
from onsight_explain.what_ifs import caching, compiling, copies, precision
from onsight_explain.what_ifs.caching import CacheOnDevice
from onsight_explain.what_ifs.compiling import CompileNetwork, GraphNetwork
from onsight_explain.what_ifs.copies import Prefetch, copied_ahead
from onsight_explain.what_ifs.precision import MatmulPrecision

KINDS = [CacheOnDevice, Prefetch, MatmulPrecision, CompileNetwork, GraphNetwork]
BUSY = {"data": 2.0, "copy": 2.0, "forward": 3.0, "backward": 3.0}


@pytest.fixture
def able(monkeypatch):
    """A machine whose GPU has everything, so far as candidates() checks."""
    for module in (caching, copies, compiling):
        monkeypatch.setattr(module, "has_streams", lambda device: device.type == "cuda")
    monkeypatch.setattr(precision, "has_tf32", lambda device: device.type == "cuda")
    monkeypatch.setattr(compiling, "has_compiler", lambda: True)


@pytest.mark.parametrize("kind", KINDS)
def test_tried_on_a_gpu_by_its_own_timeline(baseline, able, kind):
    fast = {"phases": BUSY, "steps": 1000}
    assert kind.candidates(baseline(device="cpu", **fast)) == []
    assert len(kind.candidates(baseline(device="cuda:0", **fast))) == 1
    idle = dict.fromkeys(BUSY, 0.0) | {"other": 10.0}  # where the host waited does not count
    assert kind.candidates(baseline(device="cuda:0", device_phases=idle, **fast)) == []


def test_graphs_are_for_short_steps(baseline, able):
    slow = baseline(device="cuda:0", phases=BUSY, steps=100)
    assert GraphNetwork.candidates(slow) == []
    assert [one.value for one in CompileNetwork.candidates(slow)] == ["default"]
    fast = baseline(device="cuda:0", phases=BUSY, steps=1000)
    assert [one.value for one in CompileNetwork.candidates(fast)] == ["reduce-overhead"]


def test_without_a_compiler_nothing_is_compiled(baseline, able, monkeypatch):
    monkeypatch.setattr(compiling, "has_compiler", lambda: False)
    assert CompileNetwork.candidates(baseline(device="cuda:0", phases=BUSY)) == []


def test_items_lie_on_the_device_and_are_gathered_there(apply, numbers):
    expected = list(DataLoader(numbers(), 8))
    apply(on_device="meta")
    loader = DataLoader(numbers(), 8, pin_memory=True, num_workers=1)
    found = list(loader)
    assert (loader.pin_memory, loader.num_workers) == (False, 0)
    assert {part.device.type for batch in found for part in batch} == {"meta"}
    assert [[part.shape for part in one] for one in found] == [
        [part.shape for part in one] for one in expected
    ]


class Streams:
    """torch's module for an accelerator that only notes what is asked of it."""

    def __init__(self, said):
        self.said, self.here = said, "main"

    def Stream(self, device):  # noqa: N802 (torch's name)
        return "side"

    @contextmanager
    def stream(self, stream):
        former, self.here = self.here, stream
        yield
        self.here = former

    def current_stream(self, device):
        said = self.said

        class Main:
            def wait_stream(self, other):
                said.append(f"wait for {other}")

        return Main()


def test_a_batch_is_copied_while_the_one_before_it_is_in_use(monkeypatch):
    said = []
    backend = Streams(said)
    monkeypatch.setattr(copies, "module_of", lambda device: backend)

    def to(tensor, device, non_blocking):
        said.append(f"copy {tensor.item():.0f} in {backend.here}, {non_blocking}")
        return tensor

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "record_stream", lambda one, stream: said.append("record"))
    batches = copied_ahead(iter([[torch.tensor(1.0), "a"], [torch.tensor(2.0), "b"]]), CPU)
    assert next(batches) == [torch.tensor(1.0), "a"]
    assert said == ["copy 1 in side, True", "wait for side", "record", "copy 2 in side, True"]
    assert [names for _, names in batches] == ["b"]


CPU = torch.device("cpu")


def test_products_are_rounded_and_the_script_cannot_change_it_back(apply):
    former = torch.get_float32_matmul_precision()
    try:
        apply(matmul_precision=True)
        torch.set_float32_matmul_precision("highest")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch._C._set_float32_matmul_precision(former)


def test_a_network_is_compiled_once_and_its_time_is_said(apply, monkeypatch):
    asked = []
    monkeypatch.setattr(nn.Module, "compile", lambda net, **given: asked.append(given))
    hooks = apply(compiled="reduce-overhead")
    net = nn.Linear(2, 2)
    for _ in range(3):
        net(torch.ones(1, 2))
    assert asked == [{"mode": "reduce-overhead"}]
    assert hooks.notes == []  # nothing was compiled here


def test_compiling_is_left_out_of_the_clock_and_said(apply, monkeypatch):
    """Of forwards, backwards, and again for another shape."""
    monkeypatch.setattr(callback, "callback_handler", callback.CompilationCallbackHandler())
    seconds = [100.0]
    monkeypatch.setattr(clock, "perf_counter", lambda: seconds[0])
    hooks = apply(compiled="default")
    hooks.clock.since = begun = hooks.clock.now
    with hooks.clock.within("forward"):
        for took in (20.0, 11.0):
            seconds[0] += 1
            with callback.callback_handler.install_callbacks(callback.CallbackTrigger.DYNAMO, ""):
                seconds[0] += took / 2
                with hooks.clock.within("data"):  # whatever is called there
                    seconds[0] += took / 2
    assert hooks.clock.now - begun == 2.0
    assert hooks.clock.read()["forward"] == 2.0
    assert hooks.clock.read()["data"] == 0.0
    assert hooks.notes == ["compiling took 31 s, not counted"]


def test_graphs_are_replayed_for_the_first_shape_in_training_only(apply, monkeypatch):
    replayed = []

    def graph(net, given):
        plain = net.forward

        def forward(*args):
            replayed.append(args[0].shape[0])
            return plain(*args)

        net.forward = forward

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graph)
    apply(graphed=True)
    net = nn.Linear(2, 2)
    expected = nn.functional.linear(torch.ones(4, 2), net.weight, net.bias)
    for size in (4, 4, 3, 4):
        out = net(torch.ones(size, 2))
    assert torch.equal(out, expected)
    net.eval()
    net(torch.ones(3, 2))
    assert replayed == [4, 4, 4]
