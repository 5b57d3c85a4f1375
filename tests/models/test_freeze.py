"""Training the last layer only."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onsight.errors import ModelError
from onsight.models.catalog import make_model
from onsight.models.head import freeze_backbone, set_training_mode

SHAPE = (1, 32, 32)


class Generic(nn.Module):
    """A user's net whose norm has no weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU())
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.first(self.body(images).mean(dim=(2, 3))))
        return logits


def training_step(net: nn.Module) -> None:
    set_training_mode(net)
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.5, weight_decay=0.1)
    images = torch.randn(8, *SHAPE) * 3 + 1
    F.cross_entropy(net(images), torch.arange(8) % 3).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("compact", "head"),
        ("lenet", "classifier.5"),
        ("conv3", "classifier.3"),
        ("quick", "classifier.2"),
        ("resnet10t", "fc"),
        ("test_vit", "head"),
        ("generic", "last"),
    ],
)
def test_a_step_changes_the_head_and_nothing_else(name, head):
    torch.manual_seed(0)
    shape = (1, 40, 40) if name == "conv3" else SHAPE
    net = Generic() if name == "generic" else make_model(name, shape, 3)
    if name == "conv3":
        net = nn.Sequential(nn.Upsample(size=(40, 40)), net)
        head = f"1.{head}"
    assert freeze_backbone(net) == [f"{head}.weight", f"{head}.bias"]
    before = copy.deepcopy(net.state_dict())
    training_step(net)
    changed = [
        key for key, tensor in net.state_dict().items() if not torch.equal(tensor, before[key])
    ]
    assert changed == [f"{head}.weight", f"{head}.bias"]


def test_a_frozen_backbone_is_in_evaluation_mode_and_its_head_in_training_mode():
    net = nn.Sequential(nn.Dropout(0.5), make_model("compact", SHAPE, 3))
    freeze_backbone(net)
    set_training_mode(net)
    training = [name for name, module in net.named_modules() if module.training]
    assert training == ["1.head"]


def test_norms_that_keep_their_statistics_learn_their_weights():
    net = make_model("compact", SHAPE, 3)
    net.train()(torch.randn(8, *SHAPE))
    before = copy.deepcopy(net.state_dict())
    set_training_mode(net, keep_statistics=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    F.cross_entropy(net(torch.randn(8, *SHAPE)), torch.arange(8) % 3).backward()
    optimizer.step()
    changed = {
        name for name, tensor in net.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert "stem.2.weight" in changed
    assert not [name for name in changed if "running" in name or "tracked" in name]


def test_a_deep_copy_is_held_too():
    net = make_model("compact", SHAPE, 3)
    freeze_backbone(net)
    twin = copy.deepcopy(net)
    before = copy.deepcopy(twin.stem[2].running_mean)
    training_step(twin)
    assert torch.equal(twin.stem[2].running_mean, before)


@pytest.mark.parametrize(
    "net",
    [
        make_model("compact", SHAPE, 3),
        Generic(),
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1024, affine=False), nn.Linear(1024, 3)),
        nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()),
    ],
)
def test_a_net_that_is_not_frozen_keeps_its_norms_training(net):
    net.eval()
    set_training_mode(net)
    assert all(module.training for module in net.modules())


def test_distilled_nets_have_two_heads():
    class Distilled(Generic):
        def get_classifier(self) -> tuple[nn.Module, nn.Module]:
            return self.first, self.last

    expected = ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert freeze_backbone(Distilled()) == expected


def test_no_head_is_an_error():
    with pytest.raises(
        ModelError, match="Sequential cannot be used for training.*no final linear layer"
    ):
        freeze_backbone(nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten()))
