"""What the recorder counts in loops of every kind: each image once, each update once."""

import importlib
import inspect
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.loaders import batch_length
from onsight_explain.tracing.patches import Patches, when_imported
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.updates import find_other_optimizers

HERE = Path(__file__).resolve()
CRITERION = nn.CrossEntropyLoss()


@pytest.fixture
def recorder():
    made = Recorder(PhaseClock(), Sites(HERE.parent), 1e9, 10**9, 1, lambda recorder: None)
    made.window.warm_up_seconds = 0.0
    made.install()
    yield made
    made.undo()


class Net(nn.Module):
    """A network of networks, as most are."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2))

    def forward(self, images, labels=None):
        logits = self.body(images)
        return logits if labels is None else CRITERION(logits, labels)


def data(count=64):
    return TensorDataset(torch.randn(count, 3), torch.arange(count) % 2)


def counted(recorder):
    return recorder.steps, recorder.forwards.images


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.1)


def test_accumulated_gradients_count_each_image_once(recorder):
    net = Net()
    optimizer = sgd(net)
    for number, (images, labels) in enumerate(DataLoader(data(), batch_size=8), 1):
        net(images, labels).backward()
        if number % 4 == 0:
            optimizer.step()
    assert counted(recorder) == (2, 64)


def test_a_batch_in_parts_or_used_twice_counts_once(recorder):
    net = Net()
    optimizer = sgd(net)
    for images, labels in DataLoader(data(), batch_size=16):
        for part, truth in zip(images.split(4), labels.split(4), strict=True):
            net(part, truth).backward()
        net(images, labels).backward()
        optimizer.step()
    assert counted(recorder) == (4, 64)


def test_a_closure_that_is_called_again_and_again_counts_once(recorder):
    net = Net()
    optimizer, calls = torch.optim.LBFGS(net.parameters(), max_iter=5), []

    def closure(images, labels):
        calls.append(None)
        optimizer.zero_grad()
        loss = net(images, labels)
        loss.backward()
        time.sleep(0.002)
        return loss

    for images, labels in DataLoader(data(), batch_size=32):
        optimizer.step(partial(closure, images, labels))
    assert len(calls) > 2
    assert counted(recorder) == (2, 64)
    phases = recorder.read_progress().phases
    assert phases["other"] >= 0.002 * len(calls)  # the closure's own Python is not the optimizer


def test_an_evaluation_on_the_training_loader_counts_nothing(recorder):
    net, loader = Net(), DataLoader(data(), batch_size=16)
    optimizer = sgd(net)
    for _ in range(2):
        for images, labels in loader:
            net(images, labels).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for images, _ in loader:
                net(images)
        net.train()
    assert counted(recorder) == (8, 128)
    assert recorder.forwards.evaluated == 128


def test_a_teacher_does_not_take_the_student_s_images(recorder):
    teacher, net = Net().eval(), Net()
    optimizer = sgd(net)
    for images, _ in DataLoader(data(), batch_size=16):
        target = teacher(images)  # with gradients allowed, as some forget to forbid
        (net(images) - target.detach()).square().mean().backward()
        optimizer.step()
    assert counted(recorder) == (4, 64)


def test_a_network_in_eval_mode_can_train(recorder):
    net = Net().eval()  # to keep the statistics of batch normalization
    optimizer = sgd(net)
    for images, labels in DataLoader(data(), batch_size=16):
        net(images, labels).backward()
        optimizer.step()
    assert counted(recorder) == (4, 64)


class Trainer:
    """Like those of libraries: makes its own loader, reads ahead, evaluates, accumulates."""

    def __init__(self, net, train_set, val_set):
        self.net, self.optimizer = net, sgd(net)
        self.loaders = [DataLoader(train_set, 8, shuffle=True), DataLoader(val_set, 16)]
        # As Accelerate does: a second loader around the first one's batches of numbers.
        first = self.loaders[0]
        self.loaders[0] = DataLoader(first.dataset, batch_sampler=first.batch_sampler)

    def ahead(self, loader):
        batches = iter(loader)
        now = next(batches)
        for following in batches:
            yield now
            now = following
        yield now

    def evaluate(self):
        self.net.eval()
        with torch.no_grad():
            for images, _ in self.ahead(self.loaders[1]):
                self.net(images)
        self.net.train()

    def fit(self, epochs=3):
        self.evaluate()
        for _ in range(epochs):
            for number, (images, labels) in enumerate(self.ahead(self.loaders[0]), 1):
                (self.net(images=images, labels=labels) / 2).backward()
                if number % 2 == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if number == 7:
                    self.evaluate()  # while the last batch has been drawn already


def test_a_trainer_that_wraps_the_loader(recorder):
    trainer = Trainer(Net(), data(), data(32))
    trainer.fit()
    assert counted(recorder) == (12, 3 * 64)
    assert recorder.loaders.training is trainer.loaders[0]
    assert recorder.forwards.evaluated == 4 * 32
    assert recorder.forwards.batch.shape == (8, 3)  # found among named arguments, too


def make_library(folder):
    """A package outside the user's folder that makes loaders and runs the loop."""
    folder = folder / "site-packages" / "someones_trainer"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(inspect.getsource(Trainer))
    return folder.parent


def test_the_line_of_the_user_is_reported_and_the_package_that_trains(
    recorder, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(make_library(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import someones_trainer

    vars(someones_trainer).update(sgd=sgd, DataLoader=DataLoader, torch=torch)
    trainer = someones_trainer.Trainer(Net(), data(), data(32))  # made here
    trainer.fit()  # trained here
    lines, start = inspect.getsourcelines(
        test_the_line_of_the_user_is_reported_and_the_package_that_trains
    )
    here = {text: start + at for at, line in enumerate(lines) for text in line.split("# ")[1:]}
    made = recorder.loaders.origin(trainer.loaders[0])
    assert (made.site.line, made.maker) == (here["made here\n"], "someones_trainer")
    trained = recorder.updates.trainer
    assert (trained.site.line, trained.maker) == (here["trained here\n"], "someones_trainer")


def import_library(name, code, folder, monkeypatch):
    """Import a module of this code from outside the user's folder."""
    library = folder / "site-packages"
    library.mkdir()
    (library / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(library)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return importlib.import_module(name)


def test_a_copy_of_the_user_s_own_loader_has_the_user_s_line(recorder, tmp_path, monkeypatch):
    code = (
        "def copied(loader, kind):\n"
        "    return kind(loader.dataset, batch_sampler=loader.batch_sampler)\n"
    )
    loader_copies = import_library("loader_copies", code, tmp_path, monkeypatch)
    own = DataLoader(data(), batch_size=8, shuffle=True)
    made = recorder.loaders.origin(loader_copies.copied(own, DataLoader))
    assert made == recorder.loaders.origin(own)
    assert made.maker == ""


def test_a_library_that_wraps_the_constructor_is_not_the_maker(recorder, tmp_path, monkeypatch):
    """As Lightning does while it asks a module for its loaders; a class of a library is."""
    code = (
        "from torch.utils.data import DataLoader\n"
        "def wrap(init):\n"
        "    def wrapper(obj, *args, **kwargs):\n"
        "        init(obj, *args, **kwargs)\n"
        "    return wrapper\n"
        "class Loader(DataLoader):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
    )
    loader_wrapper = import_library("loader_wrapper", code, tmp_path, monkeypatch)
    made = recorder.loaders.origin(loader_wrapper.Loader(data(), batch_size=8))
    assert made.maker == "loader_wrapper"
    monkeypatch.setattr(DataLoader, "__init__", loader_wrapper.wrap(DataLoader.__init__))
    plain = recorder.loaders.origin(DataLoader(data(), batch_size=8))
    assert (plain.maker, plain.site.line - made.site.line) == ("", 3)


def test_batches_from_a_tensor_are_counted_and_their_indexing_is_data(recorder):
    images, labels = torch.randn(96, 3), torch.arange(96) % 2
    net = Net()
    optimizer = sgd(net)
    for _ in range(2):
        order = torch.randperm(96)
        for start in range(0, 96, 32):
            index = order[start : start + 32]
            net(images[index], labels[index]).backward()
            optimizer.step()
    assert counted(recorder) == (6, 192)
    assert recorder.read_progress().phases["data"] > 0
    assert recorder.loaders.training is None


def test_one_batch_drawn_once_and_then_sliced_counts_its_slices(recorder):
    images, labels = next(iter(DataLoader(data(), batch_size=64)))
    net = Net()
    optimizer = sgd(net)
    for start in range(0, 64, 16):
        net(images[start : start + 16], labels[start : start + 16]).backward()
        optimizer.step()
    assert recorder.steps == 4
    assert recorder.forwards.images == 64 + 2 * 16  # all at first, and from the third update on


def by_data(weight):
    weight.data -= 0.1 * weight.grad


def in_place(weight):
    with torch.no_grad():
        weight -= 0.1 * weight.grad


@pytest.mark.parametrize("change", [by_data, in_place])
@pytest.mark.parametrize("zero", [lambda net: net.zero_grad(), lambda net: None])
def test_manual_updates_are_detected(recorder, change, zero):
    if change is by_data and zero(Net()) is None and zero.__code__.co_names == ():
        pytest.skip("nothing but the values tells that the weights changed")
    net = Net()
    for images, labels in DataLoader(data(), batch_size=16):
        net(images, labels).backward()
        for weight in net.parameters():
            change(weight)
        zero(net)
    assert counted(recorder) == (3, 64)  # the last one would be noticed at the next forward


class Momentum:
    """An optimizer that is not torch's."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def zero_grad(self):
        for weight in self.parameters:
            weight.grad = None

    def step(self):
        time.sleep(0.002)
        for weight in self.parameters:
            weight.data.add_(weight.grad.data, alpha=-0.1)


class Wrapped:
    """A wrapper around an optimizer, as of a library."""

    def __init__(self, inner):
        self.inner = inner

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()


@pytest.mark.parametrize(
    "make",
    [lambda net: Momentum(net.parameters()), lambda net: Wrapped(sgd(net))],
    ids=["own", "wrapper"],
)
def test_other_optimizers_count_each_update_once(recorder, make):
    net = Net()
    optimizer = make(net)
    for images, labels in DataLoader(data(), batch_size=16):
        optimizer.zero_grad()
        net(images, labels).backward()
        optimizer.step()
    assert counted(recorder) == (4, 64)
    if isinstance(optimizer, Momentum):
        assert recorder.read_progress().phases["optimizer"] >= 4 * 0.002


def test_only_optimizers_are_taken_for_optimizers():
    found = find_other_optimizers()
    assert {Momentum, Wrapped} <= set(found)
    assert not any(issubclass(one, nn.Module | torch.optim.Optimizer) for one in found)
    assert torch.optim.lr_scheduler.StepLR not in found


def test_a_scaler_around_the_optimizer(recorder):
    net, scaler = Net(), torch.amp.GradScaler("cpu")
    optimizer = sgd(net)
    for images, labels in DataLoader(data(), batch_size=16):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert counted(recorder) == (4, 64)
    assert recorder.forwards.precision == "bf16"


def test_autocast_inside_the_network_is_detected(recorder):
    net = Net()
    optimizer, plain = sgd(net), net.forward

    def forward(images, labels):  # as Accelerate wraps it
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain(images, labels).float()

    net.forward = forward
    for images, labels in DataLoader(data(), batch_size=16):
        net(images, labels).backward()
        optimizer.step()
    assert recorder.forwards.precision == "bf16"
    hooks = [hook for one in net.modules() for hook in one._forward_pre_hooks.values()]
    assert not hooks


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(64):
            yield torch.full((3,), float(index)), index % 2


def test_a_stream_is_a_loader_too(recorder):
    net, loader = Net(), DataLoader(Stream(), batch_size=16)
    optimizer = sgd(net)
    for images, labels in loader:
        net(images, labels).backward()
        optimizer.step()
    assert counted(recorder) == (4, 64)
    assert recorder.loaders.training is loader


@pytest.mark.parametrize("is_kept", [False, True], ids=["new workers", "kept workers"])
def test_workers_begin_an_epoch_each_time(recorder, is_kept):
    loader = DataLoader(data(), 16, num_workers=1, persistent_workers=is_kept)
    net, epochs = Net(), []
    recorder.loaders.on_epoch = lambda: epochs.append(recorder.steps)
    optimizer = sgd(net)
    for _ in range(3):
        for images, labels in loader:
            net(images, labels).backward()
            optimizer.step()
    assert epochs == [4, 8]
    assert counted(recorder) == (12, 192)
    loader._iterator = None


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(8, 3, 4, 4), 8),
        ([torch.zeros(8, 4, 4), torch.zeros(8)], 8),
        ({"pixel_values": torch.zeros(8, 3, 4, 4), "labels": torch.zeros(8)}, 8),
        (([torch.zeros(3, 4, 4)] * 5, [{}] * 5), 5),
        ([[torch.zeros(8, 3, 4, 4)] * 2, torch.zeros(8)], 8),
        ([], 0),
        (None, 0),
    ],
)
def test_the_images_of_a_batch(batch, count):
    assert batch_length(batch) == count


def test_an_import_is_waited_for_until_the_patches_are_undone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("waited_for", "not_waited_for"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    patches, found, before = Patches(), [], list(sys.meta_path)
    when_imported("waited_for", lambda module: found.append(module.value), patches)
    import waited_for

    assert waited_for.value == 1
    assert found == [1]
    when_imported("waited_for", lambda module: found.append(2), patches)
    when_imported("not_waited_for", lambda module: found.append(3), patches)
    patches.undo()
    import not_waited_for

    assert not_waited_for.value == 1
    assert found == [1, 2]
    assert sys.meta_path == before
