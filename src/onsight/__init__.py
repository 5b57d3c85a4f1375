"""Onsight: point it at images, get an image classifier and honest figures about it.

Names are imported on first use, so that `import onsight` is quick and does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onsight.audit.audit import Audit as Audit
    from onsight.audit.check import check as check
    from onsight.estimator import Classifier as Classifier
    from onsight.explainer.explain import explain as explain
    from onsight.inference.evaluate import evaluate as evaluate
    from onsight.inference.predictor import Predictor as Predictor
    from onsight.inference.predictor import load as load
    from onsight.report.compare import compare as compare
    from onsight.sweeper.result import Sweep as Sweep
    from onsight.sweeper.sweep import sweep as sweep
    from onsight.training.run import Run as Run
    from onsight.training.run import train as train
    from onsight_explain.placement.placement import placement as placement

_HOMES = {
    "Audit": "onsight.audit.audit",
    "Classifier": "onsight.estimator",
    "Predictor": "onsight.inference.predictor",
    "Run": "onsight.training.run",
    "Sweep": "onsight.sweeper.result",
    "check": "onsight.audit.check",
    "compare": "onsight.report.compare",
    "evaluate": "onsight.inference.evaluate",
    "explain": "onsight.explainer.explain",
    "load": "onsight.inference.predictor",
    "placement": "onsight_explain.placement.placement",
    "sweep": "onsight.sweeper.sweep",
    "train": "onsight.training.run",
}

__all__ = [
    "Audit",
    "Classifier",
    "Predictor",
    "Run",
    "Sweep",
    "check",
    "compare",
    "evaluate",
    "explain",
    "load",
    "placement",
    "sweep",
    "train",
]


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'onsight' has no attribute '{name}'")
