"""Everything that report.html says about a run, section by section."""

from pathlib import Path
from typing import cast

from onsight.evaluation.results import Results
from onsight.report import confusion, measured, origin
from onsight.report.embedding import embedded_gallery
from onsight.report.runfiles import Said, read_csv, read_epochs, read_json, read_toml_text
from onsight.report.sentences import is_unbalanced, meaning, pair_sentence


def page_of(run: Path) -> dict[str, object]:
    """The template's variables, taken only from the files of a run folder."""
    found = read_json(run / "results.json")
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
        "more": measured.more_pictures(results),
        "pairs": confusion.commonest_pairs(run, results["confusion"], classes),
        "gallery": embedded_gallery(run / "gallery"),
        "curves": measured.curves(read_epochs(run / "metrics.jsonl"), results["best_epoch"]),
        "matrix": confusion.whole_matrix(results["confusion"], classes),
        "calibration": measured.calibration(results),
        "phases": measured.phases(results),
        "plan": origin.choices(read_json(run / "plan.json")),
        "placement": origin.placements(read_json(run / "placement.json")),
        "environment": origin.machine(read_json(run / "environment.json")),
        "problems": origin.refused(read_csv(run / "problems.csv")),
        "config": read_toml_text(run / "config.toml"),
        "command": origin.command(run, results["data"]),
    }
