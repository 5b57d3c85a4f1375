"""What `onsight train` prints about a run's results, besides the table of classes."""

import io
import json

from rich.console import Console

from onsight.report.console import print_results


def printed(results):
    page = io.StringIO()
    print_results(results, Console(file=page, width=200))
    return page.getvalue()


def test_unbalanced_classes_get_their_balanced_accuracy_and_only_some_pairs_are_shown(trained):
    results = json.loads((trained.path / "results.json").read_text())
    assert "balanced accuracy" not in printed(results)
    first, second = results["classes"]
    first["images"] = 20 * second["images"]
    pair = {
        "classes": ["across", "down"],
        "told_apart": "hardly",
        "images": 20,
        "accuracy": 0.5,
        "accuracy_low": 0.4,
        "accuracy_high": 0.6,
    }
    results["confused_pairs"] = [pair] * 9
    text = printed(results)
    assert "balanced accuracy" in text
    assert "more such pairs; the report has all" in text
