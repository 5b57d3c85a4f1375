"""The messages for config fields with values that they do not accept."""

import pytest

from onsight.config import _UNUSED_BY_FITTED_HEAD, Config, make_config
from onsight.errors import ConfigError

WITH_PATTERN = sorted(
    name
    for name, field in Config.model_fields.items()
    if any(getattr(constraint, "pattern", None) for constraint in field.metadata)
)


@pytest.mark.parametrize("name", WITH_PATTERN)
def test_a_value_that_does_not_match_a_pattern_is_refused_without_showing_it(name):
    with pytest.raises(ConfigError) as error:
        make_config({name: "?"})
    message = str(error.value)
    assert message.startswith(f"--{name.replace('_', '-')} ?: write ")
    assert "pattern" not in message
    assert "^" not in message


def test_the_forms_of_a_budget_are_listed():
    with pytest.raises(ConfigError) as error:
        make_config({"budget": "5 m"})
    assert str(error.value) == (
        "--budget 5 m: write a positive number and a unit, such as 90s, 5m or 2h."
    )


def test_fields_with_a_pattern_are_found():
    assert {"budget", "folds", "image_size"} <= set(WITH_PATTERN)


def test_the_settings_without_effect_on_a_fitted_head_are_fields():
    assert Config.model_fields.keys() >= _UNUSED_BY_FITTED_HEAD


@pytest.mark.parametrize("name", ["batch_size", "epochs", "learning_rate", "folds"])
def test_true_is_no_number(name):
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} True: .* true or false"):
        make_config({name: True})
    assert make_config({"pretrained": True}).pretrained
