"""The error for a model that lacks a property that a feature of Onsight needs."""

from onsight.errors import ModelError


def unsuitable(model: object, purpose: str, reason: str, remedy: str = "") -> ModelError:
    """Return the error to raise when a model cannot be used for a purpose.

    model: a network, or a model's name; reason: the missing property, as a sentence about "it";
    remedy: models that have the property, or a change that helps.
    """
    name = model if isinstance(model, str) else type(model).__name__
    return ModelError(
        f"{name} cannot be used for {purpose}: {reason}" + (f". {remedy}" if remedy else "")
    )


def exported_unsuitable(purpose: str) -> ModelError:
    """Return the error to raise when an exported model is used for more than predicting."""
    remedy = "Use the run folder or model file that it was exported from"
    return unsuitable("an exported model", purpose, "it can only predict", remedy)
