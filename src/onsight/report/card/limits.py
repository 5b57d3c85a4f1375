"""What a model cannot do, in plain sentences that follow from its facts."""

from collections.abc import Iterator

from onsight.evaluation.results import ClassResult
from onsight.report.card.subject import Subject
from onsight.report.sentences import FEW_IMAGES, is_unbalanced, pair_sentence
from onsight.words import listed, plural

_PAIRS_SHOWN = 5


def limits(subject: Subject) -> list[str]:
    """The sentences, the most general first."""
    return [*_of_any_classifier(subject), *_of_the_test(subject), *_of_the_classes(subject)]


def _of_any_classifier(subject: Subject) -> Iterator[str]:
    file = subject.file
    height, width = file.preprocessing.format.model_size
    yield (
        f"It answers with one of {plural(len(file.classes), 'class', 'classes')}, whatever it is "
        "shown: an image of something else gets one of these names too, sometimes with "
        "confidence."
    )
    yield (
        f"It sees every image at {height}x{width} pixels"
        + (" in grey" if file.preprocessing.channels == 1 else "")
        + ", so it knows nothing of details that are lost there."
    )


def _of_the_test(subject: Subject) -> Iterator[str]:
    if subject.results["accuracy"] is None:
        return
    yield (
        "The figures hold for images like those it was tested on, which come from the same "
        "collection as those it learned from. With another camera, place, season or way of "
        "choosing images, expect other figures, and usually lower ones."
    )
    how = subject.plan["split"] or {}
    if how.get("reason"):
        yield f"How images were held out: {how['value']} ({how['reason']})."
    yield from (f"{note[:1].upper()}{note[1:]}." for note in subject.results["notes"] or [])
    if refused := subject.results["problems"]:
        images = plural(refused, "image")
        yield f"{images} could not be read, and played no part in training or test."


def _of_the_classes(subject: Subject) -> Iterator[str]:
    classes = subject.results["classes"] or []
    yield from _thinly_tested(classes)
    if is_unbalanced(classes):
        yield (
            "Some classes have over twice the test images of others, and weigh as much more in "
            "the accuracy; the balanced accuracy counts every class alike."
        )
    pairs = subject.results["confused_pairs"] or []
    yield from map(pair_sentence, pairs[:_PAIRS_SHOWN])


def _thinly_tested(classes: list[ClassResult]) -> Iterator[str]:
    if not any(row["images"] for row in classes):
        return
    none = [f"'{row['name']}'" for row in classes if not row["images"]]
    few = [
        f"'{row['name']}' ({row['images']})" for row in classes if 0 < row["images"] < FEW_IMAGES
    ]
    if none:
        yield f"Nothing is known about {listed(none)}: no image of it was in the test."
    if few:
        yield f"Too few test images to say much about single classes: {listed(few)}."
