"""The front matter of a card: what the Hugging Face Hub reads, lists and searches."""

import re
from typing import Any

from onsight.report.card.subject import Subject
from onsight.words import percent, plural

_TASK = "image-classification"
MARK = "# Written by onsight card, which replaces this file while this line is here."


def front_matter(subject: Subject, license_name: str | None, library: str) -> str:
    """YAML between two lines of ---, with the accuracy as an entry of the model-index.

    library: what loads the model on the Hub, `onsight` or `timm`.
    """
    from huggingface_hub import ModelCardData

    known: dict[str, Any] = {"license": license_name} if license_name else {}
    data = ModelCardData(
        library_name=library,
        pipeline_tag=_TASK,
        tags=[_TASK, "onsight", *(["timm"] if library == "timm" else [])],
        metrics=["accuracy"],
        model_name=subject.name,
        eval_results=_eval_results(subject),
        **known,
    )
    return f"---\n{MARK}\n{data.to_yaml()}\n---\n"


def _eval_results(subject: Subject) -> Any:
    """The accuracy, named with its interval and n; None if nothing was held out.

    The Hub's newer files of evaluation results name one of its own benchmarks, so they cannot
    tell of images that are not on the Hub.
    """
    from huggingface_hub import EvalResult

    results = subject.results
    if results["accuracy"] is None:
        return None
    low, high = percent(results["accuracy_low"]), percent(results["accuracy_high"])
    images = plural(results["images"], "image")
    return [
        EvalResult(
            task_type=_TASK,
            task_name="Image classification",
            dataset_type=re.sub(r"[^\w.-]+", "-", subject.data_name).strip("-") or "images",
            dataset_name=subject.data_name,
            dataset_split=results["split"] or "test",
            metric_type="accuracy",
            metric_name=f"Accuracy on {images}, 95% interval {low} to {high}",
            metric_value=round(results["accuracy"], 4),
        )
    ]
