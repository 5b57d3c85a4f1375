"""The list of `onsight models`: where weights are, and costs against known figures."""

import json

import huggingface_hub.constants
import pytest
from rich.console import Console

from onsight.errors import ModelError
from onsight.models.compact import Compact
from onsight.models.model_list import count_cost, find_models, locate_weights, recommended_models
from onsight.report.model_list import list_models


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "size", "parameters_millions", "multiply_adds_millions"),
    [  # as published: He et al., arXiv:1512.03385; EfficientNet-Lite's own table
        ("resnet18", (224, 224), 11.69, 1814),
        ("tf_efficientnet_lite0", (224, 224), 4.652, 407),
        ("tf_efficientnet_lite2", (260, 260), 6.092, 899),
    ],
)
def test_costs_are_those_published(name, size, parameters_millions, multiply_adds_millions):
    cost = count_cost(name)
    assert cost.size == size
    assert cost.parameters / 1e6 == pytest.approx(parameters_millions, rel=1e-3)
    # Published counts of the lite nets include batch norm and activations, a twentieth.
    assert cost.multiply_adds / 1e6 == pytest.approx(multiply_adds_millions, rel=0.06)


def test_costs_of_onsights_own_are_counted_by_hand():
    assert count_cost("linear").multiply_adds == 3 * 32 * 32 * 10
    lenet = 6 * 3 * 25 * 28**2 + 16 * 6 * 25 * 10**2 + 400 * 120 + 120 * 84 + 84 * 10
    assert count_cost("lenet").multiply_adds == lenet
    weights = sum(parameter.numel() for parameter in Compact((3, 32, 32), 10).parameters())
    assert count_cost("compact").parameters == weights


def test_where_weights_are():
    places = {name: locate_weights(name) for name in ("compact", "resnet10t", "test_vit")}
    assert places == {"compact": "none", "resnet10t": "Hub", "test_vit": "Hub"}
    assert locate_weights("tf_efficientnet_lite2") == "here"


def test_names_by_text_and_by_pattern():
    assert {"resnet18", "resnet18d", "legacy_seresnet18"} <= {*find_models("resnet18")}
    assert {"resnet18", "resnet18d", "legacy_seresnet18"} & {*find_models("resnet18*")} == {
        "resnet18",
        "resnet18d",
    }
    assert find_models("tf_efficientnet_lite?") == [f"tf_efficientnet_lite{n}" for n in range(5)]
    assert len(find_models("*")) > 1000
    assert len({*recommended_models()}) == len(recommended_models()) <= 21
    with pytest.raises(ModelError, match="no model matches 'resnett18'. Did you mean resnet18"):
        find_models("resnett18")


def test_the_list_for_people_and_for_programs(capsys):
    console = Console(soft_wrap=True, highlight=False)
    list_models("tf_efficientnet_lite0", False, console)
    out = capsys.readouterr().out
    assert "tf_efficientnet_lite0  here     224x224      4.65 M" in out
    list_models("tf_efficientnet_lite0", True, console)
    [row] = json.loads(capsys.readouterr().out)["models"]
    assert row["name"] == "tf_efficientnet_lite0"
    assert row["size"] == [224, 224]
    assert row["parameters"] == 4_652_008
    list_models("resnet", False, console)  # too many to count
    out = capsys.readouterr().out
    assert "resnet10t  (weights: Hub)" in out
    assert "for at most 40 models" in out
