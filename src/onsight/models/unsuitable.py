"""Errors for models that lack what a feature of Onsight needs."""

from onsight.errors import ModelError


def unsuitable_error(model: object, purpose: str, reason: str, remedy: str = "") -> ModelError:
    """Return the error to raise if a model cannot be used for a purpose.

    Args:
        model: A network, or the name of a model.
        purpose: What it was to be used for.
        reason: What it lacks, as a sentence about "it".
        remedy: What to do instead.
    """
    name = model if isinstance(model, str) else type(model).__name__
    return ModelError(
        f"{name} cannot be used for {purpose}: {reason}" + (f". {remedy}" if remedy else "")
    )


def exported_error(purpose: str) -> ModelError:
    """Return the error to raise if an exported model is used for more than predicting."""
    remedy = "Use the run folder or model file that it was exported from"
    return unsuitable_error("an exported model", purpose, "it can only predict", remedy)
