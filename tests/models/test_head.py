"""Tests for replacing the head of a network."""

import pytest
from torch import nn

from onsight.errors import ModelError
from onsight.models.head import add_hidden_layer, require_head


@pytest.mark.parametrize("net", [nn.Flatten(), nn.Linear(4, 2)], ids=["no head", "only a head"])
def test_error_without_a_replaceable_head_names_the_hidden_layer(net: nn.Module) -> None:
    with pytest.raises(ModelError, match="a head with a hidden layer") as error:
        add_hidden_layer(net, 8)
    assert "comparing images" not in str(error.value)


def test_error_without_features_names_the_comparison() -> None:
    with pytest.raises(ModelError, match="comparing images by features"):
        require_head(nn.Flatten())
