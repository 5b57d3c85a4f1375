"""The error for a model that lacks what a feature of Onsight needs."""

from onsight.errors import ModelError


def unsuitable(model: object, purpose: str, reason: str, remedy: str = "") -> ModelError:
    """Return the error to raise when a model cannot be used for a purpose.

    model: a network, or a model's name; reason: what it lacks, as a sentence about "it"; remedy:
    which models do not lack it, or what to change.
    """
    name = model if isinstance(model, str) else type(model).__name__
    return ModelError(
        f"{name} cannot be used for {purpose}: {reason}" + (f". {remedy}" if remedy else "")
    )


def exported_unsuitable(purpose: str) -> ModelError:
    """Return the error to raise when an exported model is used for more than predicting."""
    remedy = "Use the run folder or model file that it was exported from"
    return unsuitable("an exported model", purpose, "it can only predict", remedy)
