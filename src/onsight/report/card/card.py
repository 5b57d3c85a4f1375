"""A model card: Markdown with the Hub's front matter, made only from a run's own files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.errors import OutputError
from onsight.evaluation.results import Results
from onsight.files import write_atomically
from onsight.models.catalog import is_user_spec
from onsight.report import filters
from onsight.report.card.circumstances import circumstances
from onsight.report.card.limits import limits
from onsight.report.card.metadata import MARK, front_matter
from onsight.report.card.subject import Subject
from onsight.report.confusion import commonest_pairs
from onsight.report.console import headline
from onsight.report.measured import class_table, mean_confidence
from onsight.report.sentences import curve_sentence, meaning, temperature_sentence, trust
from onsight.report.template import has_mark, page_template
from onsight.words import listed, percent, plural

_CLASSES_SHOWN = 12


@dataclass(frozen=True)
class InFolder:
    """A card that lies beside its model: what to say about the folder, and if timm can load it."""

    said: str
    timm: bool


@dataclass(frozen=True)
class Figure:
    """A figure of the test in words, with its interval if it has one."""

    name: str
    value: str
    interval: str


def write_card(
    subject: Subject, path: Path, license_name: str | None, folder: InFolder | None = None
) -> Path:
    """Write the card, and return its path.

    Raises OutputError for a file that is somebody's own, DiskError.
    """
    if path.exists() and not has_mark(path, MARK.encode()):
        raise OutputError(
            f"{path} exists and is not a card that Onsight may replace, so it is left as it is; "
            "choose another file with --out"
        )
    write_atomically(path, card_text(subject, license_name, folder).encode())
    return path


def card_text(
    subject: Subject, license_name: str | None = None, folder: InFolder | None = None
) -> str:
    """The card as Markdown."""
    template = page_template(
        "onsight.report.card",
        "card.md.jinja",
        escaped=False,
        count=filters.whole,
        percent=percent,
        text=_text,
    )
    results = subject.results
    classes = results["classes"] or []
    library = "timm" if folder and folder.timm else "onsight"
    said = template.render(
        front_matter=front_matter(subject, license_name, library),
        name=subject.name,
        classes=subject.file.classes,
        shown_classes=listed(subject.file.classes, _CLASSES_SHOWN),
        headline=f"{_sentence(headline(results))}" if results["images"] else "",
        place="." if folder else subject.place.resolve().name,
        module=', module="package.module:callable"' if is_user_spec(subject.file.model) else "",
        hub=folder and folder.said,
        timm=folder and folder.timm,
        data=_data(subject),
        judged="each judged once" if results["split"] == "folds" else "held out",
        table=class_table(results, classes),
        meaning=meaning(results, classes),
        images=results["images"],
        figures=[*_figures(results)],
        pairs=commonest_pairs(subject.place, results["confusion"], classes) if classes else None,
        calibration=_calibration(results),
        limits=limits(subject),
        circumstances=circumstances(subject),
        license=license_name,
    )
    return re.sub(r"\n{3,}", "\n\n", said).strip() + "\n"


def _data(subject: Subject) -> str:
    said = f"The images are those of '{subject.data_name}'"
    if used := subject.results["used"]:
        classes = plural(len(subject.file.classes), "class", "classes")
        said += f": {plural(used, 'image')} in {classes}"
    curve = subject.results.get("learning_curve")
    return f"{said}. {curve_sentence(curve)}" if curve else f"{said}."


def _figures(results: Results) -> Iterator[Figure]:
    known: dict[str, Any] = dict(results)
    for name, key in (
        ("accuracy", "accuracy"),
        ("balanced accuracy, the mean of the recalls", "balanced_accuracy"),
        ("among the first five", "top5"),
        (f"accuracy with views averaged ({known.get('tta')})", "tta_accuracy"),
    ):
        if known.get(key) is not None:
            low, high = percent(known.get(f"{key}_low")), percent(known.get(f"{key}_high"))
            yield Figure(name, percent(known[key]), f"{low} to {high}")
    if known.get("expected_calibration_error") is not None:
        yield Figure("expected calibration error", percent(known["expected_calibration_error"]), "")


def _calibration(results: Results) -> str:
    mean = mean_confidence(results)
    if mean is None:
        return ""
    return (
        f"Its mean confidence was {percent(mean.claimed)}, its accuracy {percent(mean.right)} "
        f"(n = {mean.images:,}). {trust(mean.claimed, mean.right, results)} The expected "
        "calibration error, the mean gap between the two, is "
        f"{percent(results['expected_calibration_error'])}. {temperature_sentence(results)}"
    ).strip()


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _text(words: str) -> str:
    """Words whose signs Markdown and HTML take as they are."""
    return re.sub(r"([\\*_`<>#\[\]|])", r"\\\1", " ".join(words.split()))
