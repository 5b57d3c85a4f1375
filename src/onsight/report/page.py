"""report.html: one page that opens offline, made only from the files of a run folder.

This module collects the numbers and sentences; report.html.jinja decides how they look.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import jinja2

from onsight.data.sources.source import is_memory_name
from onsight.errors import OnsightError, OutputError
from onsight.evaluation.results import Results
from onsight.files import similar_names
from onsight.models.catalog import is_user_spec
from onsight.models.file import FILE_NAME
from onsight.report import measured
from onsight.report.compare import compare
from onsight.report.compare_result import class_line, gap_counts, gap_sentence, settings_line
from onsight.report.gallery import GALLERY_FILE, load_gallery
from onsight.report.html_page import page_template, write_page
from onsight.report.run_files import (
    DECISIONS,
    LenientDict,
    Row,
    drop_damaged,
    is_damaged,
    read_csv,
    read_decisions,
    read_epochs,
    read_json,
    read_toml_text,
)
from onsight.report.sentences import accuracy_sentences, is_imbalanced, loss_note, pair_sentence
from onsight.text import plain_value

_PROBLEM_ROWS = 200
_RUN_FILES = ("results.json", "metrics.jsonl", "config.toml")


def write_report(run: Path) -> Path:
    """Write report.html from the other files of a run folder, and return its path.

    The section of a missing or unreadable file is omitted, as is that of a value of a wrong type,
    which the page names. Raises OutputError for a folder without a run, DiskError.
    """
    if not run.exists():
        raise OutputError(f"{run} does not exist.{similar_names(run)}")
    if not any((run / name).is_file() for name in _RUN_FILES):
        raise OutputError(f"{run} is not a run folder: it has no results, metrics or config")
    page = _render(run, page_template("onsight.report", "report.html.jinja"))
    write_page(run / "report.html", page)
    return run / "report.html"


def _render(run: Path, template: jinja2.Template) -> str:
    contents = _read_run(run)
    try:
        return template.render(_page_variables(run, contents), damaged=[])
    except Exception:  # a value of a wrong type can raise anything, wherever it is used
        sound, damaged = drop_damaged(
            contents, lambda part: template.render(_page_variables(run, part), damaged=[])
        )
        return template.render(_page_variables(run, sound), damaged=damaged)


def _read_run(run: Path) -> dict[str, Any]:
    """Read the files that the page is made from, by name; None for unreadable ones."""
    json_files = ("results.json", "plan.json", "placement.json", "environment.json", GALLERY_FILE)
    return {
        **{name: read_json(run / name) for name in json_files},
        "export": [read_json(path) for path in sorted(run.glob("export/*.proof.json"))],
        "metrics.jsonl": read_epochs(run / "metrics.jsonl"),
        "members": {path.name: _read_member(path) for path in run.glob("members/*")},
        DECISIONS: read_decisions(run),
        "problems.csv": read_csv(run / "problems.csv"),
        "config.toml": read_toml_text(run / "config.toml"),
        "the previous run": compare_with_previous_run(run),
    }


def _read_member(folder: Path) -> dict[str, Any]:
    return {
        "metrics.jsonl": read_epochs(folder / "metrics.jsonl"),
        **{name: read_json(folder / name) for name in ("plan.json", "placement.json")},
    }


def _page_variables(run: Path, contents: Mapping[str, Any]) -> dict[str, object]:
    """Return the template's variables. Can raise anything for a value of a wrong type."""
    saved = contents["results.json"]
    results = cast(Results, saved or LenientDict())  # any value may be None if the file is broken
    classes = results["classes"] or []
    files = contents["members"] or {}
    histories = {name: member["metrics.jsonl"] for name, member in files.items()}
    members = measured.trained_members(results, histories)
    # How a network was trained is in its own folder; shown for the one that counts most. A head
    # has no training step, and so no placement.
    main = files.get(members.main, LenientDict()) if members else contents
    placements = [main["placement.json"], *(other["placement.json"] for other in files.values())]
    return {
        "name": run.resolve().name,
        "finished": saved is not None,
        "is_damaged": is_damaged(run / "results.json"),
        "results": results,
        "explanation": accuracy_sentences(results),
        "loss_note": loss_note(results) if results["loss"] is not None else "",
        "classes": measured.class_table(results, classes),
        "confused": [pair_sentence(pair) for pair in results["confused_pairs"] or []],
        "imbalanced": results["balanced_accuracy"] is not None and is_imbalanced(classes),
        "learning_curve": measured.learning_curve_figure(results),
        "confusions": measured.frequent_confusions(run, results["confusion"], classes),
        "gallery": load_gallery(run, contents[GALLERY_FILE]),
        "members": members,
        "curves": measured.training_curves(main["metrics.jsonl"], results["best_epoch"]),
        "matrix": measured.confusion_matrix(results["confusion"], classes),
        "calibration": measured.calibration(results),
        "previous": contents["the previous run"],
        "phases": measured.phase_times(results),
        "plan": plan_rows(main["plan.json"], contents[DECISIONS]),
        "placement": _placements(next(filter(None, placements), None)),
        "environment": list(_flatten(contents["environment.json"] or {})),
        "exports": _exports(contents["export"]),
        "problems": _problems(contents["problems.csv"]),
        "config": contents["config.toml"],
        "use": use_examples(run, str(results["model"])) if saved is not None else [],
        "command": repeat_command(run, results["data"]),
    }


# --- How the run was made ---


@dataclass(frozen=True)
class PlanRow:
    """A choice with its reason, or a way to compute a step with its measured speed."""

    name: str
    value: Any
    reason: str | None


def plan_rows(
    plan: Mapping[str, Any] | None, decisions: Mapping[str, Any] | None = None
) -> list[PlanRow]:
    """Return Onsight's choices and reasons, then every way to compute a step that it timed.

    decisions: those on record; some were made when memory ran out in training.
    """
    rows = {name: _choice_row(name, value) for name, value in (plan or {}).items()}
    measured = rows.pop("measured", None)
    timed = _dicts(measured.value) if measured else []
    memory = [
        PlanRow("accumulate", parts, f"memory ran out in training: {name.partition(' ')[2]}")
        for name, parts in (decisions or {}).items()
        if name.startswith("accumulate ")
    ]
    return [*rows.values(), *map(_timed_row, timed), *memory]


def _choice_row(name: str, value: Any) -> PlanRow:
    entry = value if isinstance(value, dict) and "value" in value else {"value": value}
    return PlanRow(name, entry["value"], entry.get("reason"))


def _timed_row(candidate: Row) -> PlanRow:
    """Describe a way to compute a step, with its speed or why it was rejected."""
    shown = ("precision", "threads", "memory_format")
    text = ", ".join(
        f"{name.replace('_', ' ')} {candidate[name]}" for name in shown if name in candidate
    )
    if candidate.get("cuda_graph") == "on":
        text += ", as a CUDA graph"
    if candidate.get("compile") == "on":
        text += ", compiled"
    if "refused" in candidate:
        return PlanRow("measured", text, f"rejected: {candidate['refused']}")
    return PlanRow("measured", text, f"{plain_value(candidate.get('images_per_second'))} images/s")


def _placements(ranks: Any) -> list[Row]:
    """Return where all tensors were after the first step, one entry per rank."""
    return [
        LenientDict(rank | {name: _dicts(rank[name]) for name in ("problems", "rows")})
        for rank in _dicts(ranks)
    ]


def _exports(proofs: Any) -> list[Row]:
    """Return the exported files with their proofs, skipping malformed ones."""
    return [proof for proof in _dicts(proofs) if proof["file"] and _dicts(proof["speeds"])]


def _dicts(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _flatten(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the machine and the versions, one fact per row."""
    for key, item in value.items():
        name = f"{above} › {key}" if above else str(key)
        if isinstance(item, dict):
            yield from _flatten(item, name)
        else:
            yield name.replace("_", " "), plain_value(item)


@dataclass(frozen=True)
class ProblemSummary:
    """The images that could not be used."""

    total: int
    reasons: list[tuple[tuple[str, str], int]]  # (stage, reason) and count, most frequent first
    rows: list[Row]  # the first rows of problems.csv


def _problems(rows: list[Row] | None) -> ProblemSummary | None:
    if rows is None:
        return None
    reasons = Counter((row["stage"] or "", row["reason"] or "") for row in rows)
    return ProblemSummary(len(rows), reasons.most_common(20), rows[:_PROBLEM_ROWS])


def repeat_command(run: Path, data: str | None) -> str | None:
    """Return the command that repeats the run, or None if its data is unknown or was in memory."""
    if data is None or is_memory_name(data):
        return None
    return shlex.join(["onsight", "train", str(data), "--config", str(run / "config.toml")])


def use_examples(run: Path, model: str) -> list[tuple[str, str]]:
    """Return commands and a Python program that use a run's model, each with its purpose.

    model: the name of the network, which tells where the code of your own network is.
    """
    own = ["--module", model] if is_user_spec(model) else []
    predict, serve, export = (
        shlex.join(["onsight", verb, str(run), *own]) for verb in ("predict", "serve", "export")
    )
    module = f", module={model!r}" if own else ""
    program = (
        f"import onsight\n\nmodel = onsight.load({str(run)!r}{module})\n"
        'print(model("image.jpg"))  # a folder works too; .top has the five likeliest classes'
    )
    return [
        ("Classify images, files or folders", f"{predict} IMAGES"),
        ("Classify in a browser, or over HTTP", serve),
        ("Export to ONNX, for other programs and devices", export),
        ("In Python", program),
    ]


# --- The previous run ---


def compare_with_previous_run(run: Path) -> dict[str, Any] | None:
    """Compare a run with the last one finished before it in the same folder, on the same DATA.

    Returns the template's variables about what became better or worse, or None if there is no such
    run, or if the two held out no common images.
    """
    data = _data_of(run)
    previous = next((other for other in _finished_before(run) if _data_of(other) == data), None)
    if data is None or previous is None:
        return None
    try:
        comparison = compare(previous, run)
    except OnsightError:  # other classes, no common images, a damaged file
        return None
    (gap,) = comparison.gaps
    finished = datetime.fromtimestamp(_finish_time(previous))
    return {
        "name": previous.name,
        "finished": f"{finished:%Y-%m-%d %H:%M}",
        "images": comparison.images,
        "sentence": gap_sentence(comparison, gap),
        "counts": gap_counts(gap),
        "class_lines": [class_line(name, class_gap) for name, class_gap in comparison.class_gaps],
        "settings": settings_line(comparison),
        "notes": list(comparison.notes),
        "command": shlex.join(["onsight", "compare", str(previous), str(run)]),
    }


def _data_of(run: Path) -> object:
    results = read_json(run / "results.json")
    return results.get("data") if isinstance(results, dict) else None


def _finished_before(run: Path) -> list[Path]:
    """Return the runs in the same folder that finished before this one, newest first."""
    folder = run.parent if run.name else run.resolve().parent  # the name of . is empty
    times = {path.parent: _finish_time(path.parent) for path in folder.glob(f"*/{FILE_NAME}")}
    own = _finish_time(run)
    earlier = [path for path, finished in times.items() if finished < own]
    return sorted(earlier, key=lambda path: -times[path])


def _finish_time(run: Path) -> float:
    """Return when the model file was written, which rewriting a report does not change."""
    try:
        return (run / FILE_NAME).stat().st_mtime
    except OSError:
        return 0.0
