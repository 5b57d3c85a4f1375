"""How all layers of a network with published or given weights are trained, where it is left open.

The values come from runs on photographs, drawings and clothes (docs/decisions.md).
"""

from typing import Any

from onsight.choice import Choice
from onsight.config import Config

HEAD_SHARE = 0.4  # of a budget, for the features that a head is fitted on before fine-tuning

_LEAST_EPOCHS = 1.0  # of fine-tuning: less is worse than more images for the head
_LAYER_DECAY = 0.9
_CROP_AREA = 0.8
_STEPS_IN_AVERAGE = 1 / 3  # of all steps
_MOST_DECAY = 0.9999


def fine_tunes(config: Config) -> bool:
    """Whether all layers are trained from weights that are good already."""
    return config.starts_from_weights and not config.freeze


def choose_fine_tuning(config: Config) -> dict[str, Choice[Any]]:
    """What is decided before the images are known, by config field; nothing if not fine-tuned.

    What is asked for stays.
    """
    if not fine_tunes(config):
        return {}
    choices: dict[str, Choice[Any]] = {
        "layer_decay": Choice(_LAYER_DECAY, "early layers fit most images as they are"),
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


def settle_fine_tuning(config: Config, choices: dict[str, Choice[Any]]) -> Config:
    """The config with these choices; without them, all layers learn alike."""
    settled = {
        "layer_decay": config.layer_decay or 1.0,
        "norm_statistics": config.norm_statistics.replace("auto", "batch"),
    }
    return config.model_copy(update=settled | {name: one.value for name, one in choices.items()})


def choose_average(config: Config, steps: int) -> Choice[float]:
    """The decay of the moving average of the weights, by the number of steps of a fine-tuning.

    It is that of a third of the steps, so that 5% of the start is left at the end.
    """
    if "ema" in config.model_fields_set:
        return Choice(config.ema, "set by you")
    decay = 1 - 1 / max(2.0, _STEPS_IN_AVERAGE * steps)
    return Choice(round(min(_MOST_DECAY, decay), 5), f"over a third of about {steps:,} steps")


def choose_freezing(image_seconds: float, seconds: float, training: int) -> Choice[bool]:
    """Whether a budget's time is better spent on a head alone.

    image_seconds: of a training step for each image; seconds: left for all; training: the
    number of images.
    """
    epochs = (1 - HEAD_SHARE) * seconds / (image_seconds * training)
    fitting = f"after the head there is time for {epochs:.1f} epochs of fine-tuning"
    if epochs < _LEAST_EPOCHS:
        return Choice(True, f"{fitting}: the head gets all of it", epochs)
    return Choice(False, fitting, epochs)
