"""The number of epochs, by hand."""

import pytest

from onsight.config import make_config
from onsight.errors import ConfigError
from onsight.tune.epochs import choose_epochs

TUNED = {"model": "resnet18", "pretrained": True}


@pytest.mark.parametrize(
    ("fields", "affordable", "epochs"),
    [
        ({}, 35, 35),
        ({}, 1_000, 60),
        ({}, 0, 1),
        ({"effort": "best"}, 1_000, 120),
        (TUNED, 13, 13),
        (TUNED, 1_000, 20),
        ({"epochs": 3}, 1_000, 3),
        ({**TUNED, "epochs": 3}, 1, 3),
    ],
)
def test_there_are_as_many_as_there_is_time_for(fields, affordable, epochs):
    choice = choose_epochs(make_config(fields), affordable)
    assert choice.value == epochs
    assert (choice.reason == "set by you") is ("epochs" in fields)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "all", 1_000_001])
def test_what_is_no_number_of_epochs_is_refused(bad):
    with pytest.raises(ConfigError) as caught:
        make_config({"epochs": bad})
    assert str(caught.value) == f"--epochs {bad}: write auto, or a number from 1 to 1,000,000."
