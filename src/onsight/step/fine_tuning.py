"""Settings of fine-tuning that the user has left open.

The values come from runs on photographs, drawings and clothes (docs/decisions.md).
"""

from typing import Any

from onsight.choice import Choice
from onsight.config import Config
from onsight.models.catalog import builtin_names, is_user_spec

HEAD_SHARE = 0.4  # of a budget, for fitting the head before fine-tuning

_LAYER_DECAY = 0.9
_CROP_AREA = 0.8
_AVERAGED_FRACTION = 1 / 3  # of all steps
_MAX_DECAY = 0.9999


def fine_tunes(config: Config) -> bool:
    """Return whether all layers are trained, from weights that are already good."""
    return config.starts_from_weights and not config.freeze


def choose_fine_tuning(config: Config) -> dict[str, Choice[Any]]:
    """Choose settings before the images are known, by config field; none if nothing is fine-tuned.

    Those set by the user stay.
    """
    if not fine_tunes(config):
        return {}
    choices: dict[str, Choice[Any]] = {
        "layer_decay": _choose_layer_decay(config.model),
        "norm_statistics": Choice("frozen", "the weights were trained with them"),
        "crop_area": Choice(_CROP_AREA, "a fitted head leaves nothing to learn from whole images"),
    }
    left_open = {
        "layer_decay": not config.layer_decay,
        "norm_statistics": config.norm_statistics == "auto",
        "crop_area": "crop_area" not in config.model_fields_set,
    }
    return {
        name: choice if left_open[name] else Choice(getattr(config, name), "set by you")
        for name, choice in choices.items()
    }


def _choose_layer_decay(model: str) -> Choice[float]:
    if model in builtin_names() or is_user_spec(model):
        return Choice(1.0, "only timm's networks say which layers come first")
    return Choice(_LAYER_DECAY, "early layers suit most images as they are")


def settle_fine_tuning(config: Config, choices: dict[str, Choice[Any]]) -> Config:
    """Return the config with these choices; without any, all layers have one learning rate."""
    settled = {
        "layer_decay": config.layer_decay or 1.0,
        "norm_statistics": config.norm_statistics.replace("auto", "batch"),
    }
    return config.model_copy(update=settled | {name: one.value for name, one in choices.items()})


def choose_average(config: Config, steps: int) -> Choice[float]:
    """Choose the decay of the moving average of the weights for a number of fine-tuning steps.

    It averages over a third of the steps, so that 5% of the initial weights is left at the end.
    """
    if "ema" in config.model_fields_set:
        return Choice(config.ema, "set by you")
    decay = 1 - 1 / max(2.0, _AVERAGED_FRACTION * steps)
    return Choice(round(min(_MAX_DECAY, decay), 5), f"over a third of about {steps:,} steps")
