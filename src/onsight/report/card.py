"""A model card: Markdown with the Hub's front matter, made only from a run's files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.evaluation.results import Results
from onsight.files import refuse_foreign
from onsight.models.catalog import is_user_spec
from onsight.report.card_facts import CardSubject, limitations, training_facts
from onsight.report.console import headline
from onsight.report.html_page import page_template, write_page
from onsight.report.measured import class_table, frequent_confusions, mean_confidence
from onsight.report.sentences import (
    accuracy_sentences,
    calibration_sentence,
    confidence_sentence,
    learning_curve_sentence,
)
from onsight.text import joined, percent, plural, printable

CARD_MARK = "# Written by onsight card, which replaces this file while this line is here."
_CLASSES_SHOWN = 12
_TASK = "image-classification"


@dataclass(frozen=True)
class FolderNote:
    """Facts about the folder in which the card is published with its model."""

    text: str
    timm: bool  # whether timm can load it


def write_card(
    subject: CardSubject, path: Path, license_name: str | None, folder: FolderNote | None = None
) -> Path:
    """Write the card, and return its path.

    Raises OutputError for a file that Onsight did not write, DiskError.
    """
    refuse_foreign(path, CARD_MARK.encode(), "a model card")
    write_page(path, card_text(subject, license_name, folder))
    return path


def card_text(
    subject: CardSubject, license_name: str | None = None, folder: FolderNote | None = None
) -> str:
    """Return the card as Markdown."""
    template = page_template(
        "onsight.report", "card.md.jinja", autoescape=False, text=_escape_markdown
    )
    results = subject.results
    classes, result = results["classes"] or [], headline(results)
    card = template.render(
        front_matter=_front_matter(
            subject, license_name, "timm" if folder and folder.timm else "onsight"
        ),
        name=subject.name,
        classes=subject.file.classes,
        shown_classes=joined(subject.file.classes, _CLASSES_SHOWN),
        headline=f"{result[:1].upper()}{result[1:]}" if results["images"] else "",
        path="." if folder else subject.path.resolve().name,
        module=', module="package.module:callable"' if is_user_spec(subject.file.model) else "",
        hub=folder and folder.text,
        timm=folder and folder.timm,
        data=_data_sentence(subject),
        test_column="cross-validated" if results["split"] == "folds" else "held out",
        table=class_table(results, classes),
        explanation=accuracy_sentences(results),
        images=results["images"],
        figures=[*_figures(results)],
        confusions=frequent_confusions(subject.path, results["confusion"], classes)
        if classes
        else None,
        calibration=_calibration_text(results),
        limitations=limitations(subject),
        training_facts=training_facts(subject),
        license=license_name,
    )
    return re.sub(r"\n{3,}", "\n\n", card).strip() + "\n"


def _front_matter(subject: CardSubject, license_name: str | None, library: str) -> str:
    """Return the YAML that the Hub reads, with the accuracy as an entry of the model-index.

    library: what loads the model on the Hub, `onsight` or `timm`.
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name=library,
        pipeline_tag=_TASK,
        tags=[_TASK, "onsight", *(["timm"] if library == "timm" else [])],
        metrics=["accuracy"],
        model_name=subject.name,
        eval_results=_eval_results(subject),
        license=license_name or None,
    )
    return f"---\n{CARD_MARK}\n{data.to_yaml()}\n---\n"


def _eval_results(subject: CardSubject) -> Any:
    """Return the accuracy, named with its interval and n, or None if nothing was held out.

    The Hub's newer files of evaluation results refer to the Hub's benchmarks, so they cannot
    describe images that are not on the Hub.
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
            metric_name=f"Accuracy on {images}, 95% CI {low} to {high}",
            metric_value=round(results["accuracy"], 4),
        )
    ]


def _data_sentence(subject: CardSubject) -> str:
    sentence = f"Images from '{subject.data_name}'"
    if used := subject.results["used"]:
        classes = plural(len(subject.file.classes), "class", "classes")
        sentence += f": {plural(used, 'image')} in {classes}"
    curve = subject.results.get("learning_curve")
    return f"{sentence}. {learning_curve_sentence(curve)}" if curve else f"{sentence}."


def _figures(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yield each figure's name, its value and its interval, empty if it has none."""
    values: dict[str, Any] = dict(results)
    for name, key in (
        ("accuracy", "accuracy"),
        ("balanced accuracy (mean recall)", "balanced_accuracy"),
        ("top-5 accuracy", "top5"),
        (f"accuracy with test-time augmentation ({values.get('tta')})", "tta_accuracy"),
    ):
        if values.get(key) is not None:
            low, high = percent(values.get(f"{key}_low")), percent(values.get(f"{key}_high"))
            yield name, percent(values[key]), f"{low} to {high}"
    if values.get("expected_calibration_error") is not None:
        yield "expected calibration error", percent(values["expected_calibration_error"]), ""


def _calibration_text(results: Results) -> str:
    mean = mean_confidence(results)
    if mean is None:
        return ""
    return (
        f"Mean confidence {percent(mean.confidence)}, accuracy {percent(mean.accuracy)} "
        f"(n = {mean.images:,}). {confidence_sentence(mean.confidence, mean.accuracy, results)} "
        f"{calibration_sentence(results)}"
    )


def _escape_markdown(text: str) -> str:
    """Escape text so that neither Markdown nor HTML changes it, nor it a terminal."""
    return re.sub(r"([\\*_`<>#\[\]|])", r"\\\1", printable(" ".join(text.split())))
