"""Changes made from outside do what the script's own line would do."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from onsight.explain.script.hooks import Hooks
from onsight.explain.script.what_ifs.table import what_ifs_from
from onsight.explain.tracing.patches import Patches


def install(changes, patches):
    hooks = Hooks(patches, lambda: False, lambda network: not network.training)
    for what_if in what_ifs_from(changes):
        what_if.install(hooks)
    hooks.install()


@pytest.fixture
def apply():
    """A function that puts changes in force until the test ends."""
    patches = Patches()

    def put(**changes):
        install(changes, patches)

    yield put
    patches.undo()


def data(count=64):
    return TensorDataset(torch.arange(float(count)).view(-1, 1), torch.zeros(count))


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"workers": 2}, "num_workers", 2),
        ({"workers": 0}, "num_workers", 0),
        ({"workers": 2, "persistent_workers": True}, "persistent_workers", True),
        ({"batch_factor": 4}, "batch_size", 16),
    ],
)
def test_loaders_get_what_was_changed(apply, changes, name, value):
    apply(**changes)
    loader = DataLoader(data(), 4, shuffle=True, num_workers=1, prefetch_factor=3)
    assert getattr(loader, name) == value


def test_a_larger_batch_is_for_training_alone(apply):
    apply(batch_factor=4)
    assert DataLoader(data(), 4).batch_size == 4
    assert DataLoader(data(8), 4, shuffle=True).batch_size == 8  # no more than there are


def test_kept_items_come_in_the_same_order(apply):
    def order():
        torch.manual_seed(5)
        return torch.cat([x for x, _ in DataLoader(data(), 8, shuffle=True)]).tolist()

    expected = order()
    apply(cache="items")
    assert order() == expected


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_the_fused_optimizer_makes_the_same_update(apply, kind):
    def updated():
        weight = nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()
        return weight.detach(), optimizer.defaults["fused"]

    plain, _ = updated()
    apply(fused=True)
    fused, is_fused = updated()
    assert is_fused
    torch.testing.assert_close(fused, plain)


def test_autocast_computes_in_bf16_and_hands_back_fp32(apply):
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            out = self.layer(x)
            seen.append(out.dtype)
            return out

    apply(bf16=True)
    out = Net()(torch.ones(1, 2))
    loss = nn.CrossEntropyLoss()(out, torch.zeros(1, dtype=torch.long))
    assert (seen, out.dtype) == ([torch.bfloat16], torch.float32)
    loss.backward()


def test_channels_last_reaches_network_and_batch(apply):
    seen = []

    class Net(nn.Conv2d):
        def forward(self, x):
            seen.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    apply(channels_last=True)
    net, images = Net(3, 4, 3), torch.randn(2, 3, 8, 8)
    expected = nn.functional.conv2d(images, net.weight, net.bias)
    torch.testing.assert_close(net(images), expected)
    assert seen == [True]
    assert net.weight.is_contiguous(memory_format=torch.channels_last)


def test_only_evaluation_loses_its_graph(apply):
    apply(no_grad=True)
    net = nn.Linear(2, 2)
    assert net(torch.ones(1, 2)).requires_grad
    net.eval()
    assert not net(torch.ones(1, 2)).requires_grad


def test_random_transforms_move_to_the_batch(apply):
    from torchvision.transforms import Compose, RandomHorizontalFlip, ToTensor
    from torchvision.transforms.functional import to_pil_image

    class Pictures(torch.utils.data.Dataset):
        def __init__(self):
            self.transform = Compose([RandomHorizontalFlip(1.0), ToTensor()])

        def __len__(self):
            return 4

        def __getitem__(self, index):
            picture = torch.tensor([[[index, index + 100]]], dtype=torch.uint8)
            return self.transform(to_pil_image(picture)), index

    (expected,) = [x for x, _ in DataLoader(Pictures(), 4)]
    apply(augment_batches=True)
    dataset = Pictures()
    (images,) = [x for x, _ in DataLoader(dataset, 4)]
    assert torch.equal(images, expected)
    assert not torch.equal(dataset[0][0], expected[0])  # the item itself is not flipped any more


def test_fixed_transforms_are_done_once_and_the_random_ones_draw_as_before(apply):
    made = []

    class Fixed:
        def __call__(self, value):
            made.append(value)
            return value + 1.0

    class RandomShift:
        def __call__(self, value):
            return value + torch.rand(())

    class Numbers(torch.utils.data.Dataset):
        def __init__(self):
            from torchvision.transforms import Compose

            self.transform = Compose([Fixed(), RandomShift()])

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.transform(torch.tensor(float(index))), index

    def epochs():
        torch.manual_seed(2)
        loader = DataLoader(Numbers(), 3, shuffle=True)
        return torch.stack([torch.cat([x for x, _ in loader]) for _ in range(2)])

    expected = epochs()
    made.clear()
    apply(cache="fixed")
    assert torch.equal(epochs(), expected)
    assert len(made) == 6


@pytest.mark.parametrize("changes", [{"cache": "fixed"}, {"augment_batches": True}])
def test_a_set_without_transforms_says_that_nothing_could_be_moved(apply, changes):
    apply(**changes)
    with pytest.raises(ValueError, match="the data set has no"):
        DataLoader(data(), 4, shuffle=True)


def test_everything_is_put_back():
    before = DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__
    threads = torch.get_num_threads()
    patches = Patches()
    install({"threads": 1, "fused": True, "workers": 1, "bf16": True}, patches)
    patches.undo()
    assert before == (DataLoader.__init__, torch.set_num_threads, torch.optim.SGD.__init__)
    torch.set_num_threads(threads)
