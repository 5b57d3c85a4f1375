"""Everything that report.html says about a run, section by section."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from onsight.evaluation.results import Results
from onsight.report import confusion, measured, origin
from onsight.report.earlier import compared_with_earlier
from onsight.report.embedding import GALLERY, embedded_gallery
from onsight.report.runfiles import Said, read_csv, read_epochs, read_json, read_toml_text
from onsight.report.sentences import is_unbalanced, meaning, pair_sentence


def contents_of(run: Path) -> dict[str, Any]:
    """The files of a run folder that the page is made from, by their names; None if unreadable.

    With them, how the run compares with an earlier one.
    """
    json_files = ("results.json", "plan.json", "placement.json", "environment.json", GALLERY)
    return {
        **{name: read_json(run / name) for name in json_files},
        "export": [read_json(path) for path in sorted(run.glob("export/*.proof.json"))],
        "metrics.jsonl": read_epochs(run / "metrics.jsonl"),
        "problems.csv": read_csv(run / "problems.csv"),
        "config.toml": read_toml_text(run / "config.toml"),
        "an earlier run": compared_with_earlier(run),
    }


def page_of(run: Path, contents: Mapping[str, Any]) -> dict[str, object]:
    """The template's variables. May raise anything if a value in a file has the wrong type."""
    found = contents["results.json"]
    results = cast(Results, found or Said())  # any value may be None if the file is broken
    classes = results["classes"] or []
    return {
        "name": run.resolve().name,
        "finished": found is not None,
        "results": results,
        "meaning": meaning(results, classes),
        "classes": measured.class_table(results, classes),
        "told_apart": [pair_sentence(pair) for pair in results["confused_pairs"] or []],
        "unbalanced": results["balanced_accuracy"] is not None and is_unbalanced(classes),
        "more": measured.more_images(results),
        "pairs": confusion.commonest_pairs(run, results["confusion"], classes),
        "gallery": embedded_gallery(run, contents[GALLERY]),
        "curves": measured.curves(contents["metrics.jsonl"], results["best_epoch"]),
        "matrix": confusion.whole_matrix(results["confusion"], classes),
        "calibration": measured.calibration(results),
        "earlier": contents["an earlier run"],
        "phases": measured.phases(results),
        "plan": origin.choices(contents["plan.json"]),
        "placement": origin.placements(contents["placement.json"]),
        "environment": origin.machine(contents["environment.json"]),
        "exports": origin.exports(contents["export"]),
        "problems": origin.refused(contents["problems.csv"]),
        "config": contents["config.toml"],
        "command": origin.command(run, results["data"]),
    }
