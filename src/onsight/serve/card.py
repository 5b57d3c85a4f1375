"""What a model says about itself to people and programs: facts, and figures with their n."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onsight.serve.served import Served
from onsight.serve.shelf import model_file
from onsight.words import percent

_SHARE = ("accuracy", "accuracy_low", "accuracy_high", "images")
_FEW = 30  # images of a class, too few for its figure to say much


def card(served: Served, can: Mapping[str, bool]) -> dict[str, Any]:
    """The facts of a model as JSON; what is not known is None, or an empty list."""
    size = served.predictor.format
    model, results, provenance = _known(served)
    rows = [_class(row) for row in results.get("classes") or []]
    data = provenance.get("data")
    return {
        "name": served.name,
        "model": model,
        "classes": list(served.classes),
        "input": {
            "height": size.shown[0],
            "width": size.shown[1],
            "channels": size.channels,
            "fit": size.fit,
            "pixel_limit": size.pixel_limit,
        },
        **{name: results.get(name) for name in _SHARE},
        "per_class": rows,
        "data": Path(data).name if isinstance(data, str) else None,  # its place is nobody's concern
        "date": _date(served.place),
        "limits": list(_limits(len(served.classes), results, rows)),
        "can": dict(can),
    }


def _known(served: Served) -> tuple[str | None, Mapping[str, Any], Mapping[str, Any]]:
    """(model, results, provenance), from the model file or from what an exported one holds."""
    runner = served.predictor.runner
    file = getattr(runner, "file", None)
    if file is not None:
        return file.model, file.results, file.provenance
    facts: Mapping[str, Any] = getattr(runner, "metadata", {})
    return facts.get("model"), facts.get("results") or {}, facts.get("provenance") or {}


def _class(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": row.get("name"),
        "recall": row.get("recall"),
        "low": row.get("recall_low"),
        "high": row.get("recall_high"),
        "n": row.get("images"),
    }


def _date(place: Path) -> str | None:
    """The day on which the file was written."""
    try:
        return datetime.fromtimestamp(model_file(place).stat().st_mtime, UTC).date().isoformat()
    except OSError:
        return None


def _limits(classes: int, results: Mapping[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """What whoever uses the model should know before trusting it."""
    yield f"It names one of its {classes:,} classes for any image, also of something else."
    if not results.get("images") or results.get("accuracy") is None:
        yield "Its accuracy is unknown: no images were held out to judge it."
        return
    yield (
        f"Its accuracy was measured on {results['images']:,} images like those it was trained "
        "on; other cameras, places or kinds of image may do worse."
    )
    known = [row for row in rows if row["recall"] is not None]
    if known:
        worst = min(known, key=lambda row: row["recall"])
        yield (
            f"It is weakest on {worst['class']}: {percent(worst['recall'])} of {worst['n']:,} "
            "were recognised."
        )
    few = sum((row["n"] or 0) < _FEW for row in rows)
    if few:
        yield f"{few:,} of its classes were judged on fewer than {_FEW} images each."
