"""report.html: one page that opens offline, made from the files of a run folder and nothing else.

Onsight chooses numbers and sentences here; report.html.jinja decides how they look.
"""

import base64
import csv
import hashlib
import io
import json
import math
import shlex
import struct
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from onsight.errors import OutputError
from onsight.files import write_atomically
from onsight.report import figures

Row = dict[str, Any]

_MATRIX_CLASSES, _IMAGE_CLASSES, _WORST_CLASSES = 25, 200, 50
_PROBLEM_ROWS = 200
_TINY_PIXELS = 112
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class _Said(dict[str, Any]):
    """What a file of the run says; None for what it does not."""

    def __missing__(self, key: str) -> None:
        return None


def write_report(run: Path) -> Path:
    """Write report.html from the other files of a run folder, and return its path.

    A missing or unreadable file costs its section only. Raises OutputError for a folder that holds
    no run, DiskError.
    """
    if not any((run / name).is_file() for name in ("results.json", "metrics.jsonl", "config.toml")):
        raise OutputError(f"{run} is no run folder: it has no results, metrics or config.")
    page = _template().render(_page(run))
    target = run / "report.html"
    # A path whose bytes are no UTF-8 is shown with escapes rather than refused.
    write_atomically(target, page.encode("utf-8", "backslashreplace"))
    return target


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent, "count": _count, "number": _number, "duration": duration,
        "plain": _plain, "ending": _ending, "sha256": _sha256,
    }  # fmt: skip
    text = (resources.files("onsight.report") / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(text)


def _page(run: Path) -> Row:
    found = _read(run / "results.json", _json)
    results: Row = found or _Said()
    classes: list[Row] = results["classes"] or []
    plan = _read(run / "plan.json", _json)
    environment = _read(run / "environment.json", _json)
    return {
        "name": run.resolve().name,
        "finished": found is not None,
        "results": results,
        "meaning": meaning(results, classes),
        "classes": _class_section(results, classes),
        "pairs": _pairs_section(run, results["confusion"], classes),
        "gallery": _gallery(run / "gallery"),
        "curves": _curves(_read(run / "metrics.jsonl", _json_lines), results["best_epoch"]),
        "matrix": _matrix_section(results["confusion"], classes),
        "calibration": _calibration_section(results),
        "phases": _phases(results),
        "plan": [{"name": key, **_choice(value)} for key, value in (plan or {}).items()],
        "environment": list(_flat(environment or {})),
        "problems": _problems(_read(run / "problems.csv", _csv_rows)),
        "config": _read(run / "config.toml", _checked_toml),
        "command": _command(run, results["data"]),
    }


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """What a file of the run says, or None when it is missing or broken."""
    try:
        return parse(path.read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError, csv.Error):
        return None


def _json(text: str) -> Any:
    return json.loads(text, object_hook=_Said)


def _json_lines(text: str) -> list[Row]:
    return [_json(line) for line in text.splitlines() if line.strip()]


def _csv_rows(text: str) -> list[Row]:
    return [_Said(row) for row in csv.DictReader(io.StringIO(text, newline=""))]


def _checked_toml(text: str) -> str:
    tomllib.loads(text)
    return text


# Numbers as a reader wants them.


def percent(share: float | None) -> str:
    """A share as 91.4%; more digits where these would round to none or all."""
    if share is None or not math.isfinite(share):
        return "–"
    share = round(share, 9)  # an interval's end may miss 1 by the float's last bit
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    if share > 0.9999:
        return ">99.99%"
    return f"{share:.2%}" if share < 0.0005 or share > 0.9995 else f"{share:.1%}"


def duration(seconds: float | None) -> str:
    """Seconds as 0.42 s, 12.3 s, 4 min 5 s or 2 h 3 min."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if round(seconds, 1) < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _count(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _plain(value: Any) -> str:
    """A value of the plan or the environment in words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ending(path: str, length: int = 44) -> str:
    """The end of a path, which tells files apart."""
    if len(path) <= length:
        return path
    tail = path[-length:]
    return "…/" + (tail.partition("/")[2] or tail)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# What the headline means.


def meaning(results: Row, classes: list[Row]) -> list[str]:
    """The headline accuracy in plain sentences."""
    accuracy, n = results["accuracy"], results["images"]
    if accuracy is None or not n:
        return [
            "No held-out picture exists, so nothing can be said about how good this classifier is.",
            "Hold some out with --test-fraction, or give the data a test split.",
        ]
    sentences = [
        f"Of {n:,} {results['split']} pictures that it never learned from, it named "
        f"{round(accuracy * n):,} right.",
        f"On new pictures of the same kind, expect between {percent(results['accuracy_low'])} and "
        f"{percent(results['accuracy_high'])} (95% interval).",
    ]
    if classes:
        sentences.append(_against_the_commonest(results["accuracy_low"], n, classes))
    if results["split"] == "validation":
        sentences.append(
            "These pictures also chose which epoch was kept, so the figure is a little flattering; "
            "a test split would give a clean one."
        )
    return sentences


def _against_the_commonest(accuracy_low: float, n: int, classes: list[Row]) -> str:
    commonest = max(classes, key=lambda row: row["images"] or 0)
    share = (commonest["images"] or 0) / n
    answer = f"always answering '{commonest['name']}', the commonest class"
    if accuracy_low > share:
        return f"For comparison, {answer}, would be right for {percent(share)} of these {n:,}."
    return (
        f"It has not been shown to beat {answer}, which would be right for {percent(share)} "
        f"of these {n:,}."
    )


# The classes, worst first.


def _class_section(results: Row, classes: list[Row]) -> Row | None:
    if not classes:
        return None
    accuracy = results["accuracy"]
    for row in classes:
        row["below"] = _below(row, accuracy)
    worst_first = sorted(classes, key=lambda row: 2.0 if row["recall"] is None else row["recall"])
    shown = worst_first if len(classes) <= _IMAGE_CLASSES else worst_first[:_WORST_CLASSES]
    lows = [row["recall_low"] for row in shown if row["recall_low"] is not None]
    return {
        "rows": shown,
        "total": len(classes),
        "floor": math.floor(min(lows, default=0.0) * 10) / 10,
        "train_images": sum(row["train_images"] or 0 for row in classes),
        "validation_images": sum(row["validation_images"] or 0 for row in classes),
        "noise": noise_sentences(worst_first, accuracy, results["images"]),
    }


def _below(row: Row, accuracy: float | None) -> bool:
    return accuracy is not None and row["recall"] is not None and row["recall_high"] < accuracy


def noise_sentences(worst_first: list[Row], accuracy: float | None, n: int | None) -> list[str]:
    """Whether the classes differ by more than chance would make them."""
    judged = [row for row in worst_first if row["recall"] is not None]
    if accuracy is None or len(judged) < 2:
        return []
    worst, below = judged[0], [row for row in judged if _below(row, accuracy)]
    sentence = (
        f"The worst is '{worst['name']}': {percent(worst['recall'])} of its "
        f"{worst['images']:,} pictures were recognised. Its interval, "
        f"{percent(worst['recall_low'])} to {percent(worst['recall_high'])}, "
    )
    if worst in below:
        sentence += f"lies below the overall {percent(accuracy)} (n = {n:,}): more than noise."
    else:
        sentence += f"includes the overall {percent(accuracy)} (n = {n:,}): it may be noise."
    if not below:
        return [sentence, "No class is clearly worse than the whole."]
    return [
        sentence,
        f"{len(below)} of {len(judged)} classes {'lies' if len(below) == 1 else 'lie'} wholly "
        "below the overall accuracy (marked ▼); were all equally hard, chance alone would put "
        f"about {0.025 * len(judged):.2g} there.",
    ]


# What is taken for what.


def _pairs_section(run: Path, confusion: list[list[int]] | None, classes: list[Row]) -> Row | None:
    if confusion is not None:
        counts = _matrix_pairs(confusion, [row["name"] for row in classes])
    else:
        predictions = _read(run / "predictions.csv", _csv_rows)
        if predictions is None:
            return None
        counts = _predicted_pairs(predictions)
    limit = 10 if len(classes) <= _MATRIX_CLASSES else 20 if len(classes) <= _IMAGE_CLASSES else 30
    images = {row["name"]: row["images"] for row in classes}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    rows = [
        {"true": true, "taken": taken, "count": count, "images": images.get(true) or 0}
        for (true, taken), count in ranked[:limit]
    ]
    return {"rows": rows, "total": len(ranked), "mistakes": sum(counts.values())}


def _matrix_pairs(confusion: list[list[int]], names: list[str]) -> dict[tuple[str, str], int]:
    matrix = np.array(confusion)
    np.fill_diagonal(matrix, 0)
    return {(names[i], names[j]): int(matrix[i, j]) for i, j in np.argwhere(matrix > 0).tolist()}


def _predicted_pairs(predictions: list[Row]) -> Counter[tuple[str, str]]:
    labels = ((row["label"], row["predicted"]) for row in predictions)
    return Counter((a, b) for a, b in labels if a is not None and b is not None and a != b)


def _matrix_section(confusion: list[list[int]] | None, classes: list[Row]) -> Row | None:
    if not confusion or not np.any(confusion):
        return None
    names = [row["name"] for row in classes]
    section: Row = {"kind": "none", "names": names, "long": max(map(len, names)) > 3}
    if len(names) <= _MATRIX_CLASSES:
        section |= {"kind": "table", "rows": _matrix_rows(confusion, names)}
    elif len(names) <= _IMAGE_CLASSES:
        section |= {"kind": "image", "svg": figures.confusion_image(confusion, names)}
    return section


def _matrix_rows(confusion: list[list[int]], names: list[str]) -> list[Row]:
    return [
        {
            "name": names[i],
            "images": sum(counts),
            "cells": [_cell(count, sum(counts), i == j) for j, count in enumerate(counts)],
        }
        for i, counts in enumerate(confusion)
    ]


def _cell(count: int, total: int, right: bool) -> Row:
    share = count / total if total else 0.0
    # Mistakes are rare: their square root makes 1% visible beside 90%.
    return {
        "count": count,
        "share": share,
        "strength": share if right else share**0.5,
        "right": right,
    }


# Pictures.


def _gallery(folder: Path) -> dict[str, list[Row]] | None:
    listed = _read(folder / "gallery.json", _json)
    if listed is None:
        return None
    return {
        side: [
            _Said(item | _picture(folder / Path(item["file"]).name))
            for item in listed.get(side, [])
        ]
        for side in ("wrong", "right")
    }


def _picture(path: Path) -> Row:
    """A PNG as a data URI, and whether it is so small that its pixels should stay crisp."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if len(data) < 24 or not data.startswith(_PNG_SIGNATURE):
        return {"uri": None, "tiny": False}
    width, height = struct.unpack(">II", data[16:24])
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    return {"uri": uri, "tiny": max(width, height) <= _TINY_PIXELS}


# The course of training, calibration, time.


def _curves(epochs: list[Row] | None, best_epoch: int | None) -> Row | None:
    if not epochs:
        return None
    return {
        "figures": [
            ("Loss", figures.loss_curve(epochs)),
            ("Validation accuracy", figures.accuracy_curve(epochs)),
            ("Learning rate", figures.learning_rate_curve(epochs)),
        ],
        "epochs": epochs,
        "overfit": _overfit(epochs),
        "best": next((row for row in epochs if row["epoch"] == best_epoch), None),
    }


def _overfit(epochs: list[Row]) -> Row | None:
    """The epoch of least validation loss, when the loss clearly rose after it."""
    judged = [row for row in epochs if row["validation_loss"] is not None]
    if not judged:
        return None
    least = min(judged, key=lambda row: float(row["validation_loss"]))
    return least if judged[-1]["validation_loss"] > 1.05 * least["validation_loss"] else None


def _calibration_section(results: Row) -> Row | None:
    bins = [row for row in results["calibration"] or [] if row["images"]]
    n = sum(row["images"] for row in bins)
    if not n:
        return None
    claimed = sum(row["images"] * row["confidence"] for row in bins) / n
    right = sum(row["images"] * row["accuracy"] for row in bins) / n
    return {
        "svg": figures.calibration_diagram(bins),
        "bins": bins,
        "images": n,
        "claimed": claimed,
        "right": right,
        "verdict": _trust(claimed, right, results),
    }


def _trust(claimed: float, right: float, results: Row) -> str:
    low, high = results["accuracy_low"], results["accuracy_high"]
    if low is None or high is None:
        return ""
    if abs(claimed - right) <= (high - low) / 2:
        return "Within noise, it is as sure as it is right."
    return (
        "It is surer than it is right." if claimed > right else "It is right more than it is sure."
    )


def _phases(results: Row) -> list[Row]:
    phases: Row = dict(results["phases"] or {})
    total = max(sum(phases.values()), results["seconds"] or 0.0)
    rest = total - sum(phases.values())
    if total and rest > 0.01 * total:
        phases["everything else"] = rest
    ranked = sorted(phases.items(), key=lambda item: -item[1])
    return [
        {"name": name, "seconds": value, "share": value / total} for name, value in ranked if total
    ]


# The machine, the problems, the way back here.


def _choice(value: Any) -> Row:
    known = value if isinstance(value, dict) and "value" in value else {"value": value}
    return {"value": known["value"], "reason": known.get("reason"), "figure": known.get("figure")}


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{above} › {key}" if above else str(key)
        if isinstance(item, dict):
            yield from _flat(item, name)
        else:
            yield name.replace("_", " "), _plain(item)


def _problems(rows: list[Row] | None) -> Row | None:
    if rows is None:
        return None
    reasons = Counter((row["stage"] or "", row["reason"] or "") for row in rows)
    return {"total": len(rows), "reasons": reasons.most_common(20), "rows": rows[:_PROBLEM_ROWS]}


def _command(run: Path, data: str | None) -> str | None:
    if data is None:
        return None
    return shlex.join(["onsight", "train", str(data), "--config", str(run / "config.toml")])
