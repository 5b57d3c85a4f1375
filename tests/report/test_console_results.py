"""What `onsight train` prints about a run's results, besides the table of classes."""

import io
import json

from rich.console import Console
from rich.table import Table

from onsight.report.console import Reporter, WrappingConsole, print_results


def printed(results):
    page = io.StringIO()
    print_results(results, Console(file=page, width=200))
    return page.getvalue()


def test_names_are_neither_emojis_nor_commands_to_the_terminal():
    page = io.StringIO()
    reporter = Reporter(WrappingConsole(file=page, force_terminal=True, width=200))
    reporter.say("run: o:smile:/\x1b[31mred")
    reporter.warn("not used: o:smile:/\x1b[31mred")
    table = Table("file")
    table.add_row("o:smile:/\x1b[31mred")
    reporter.console.print(table)
    assert page.getvalue().count("o:smile:/\\x1b[31mred") == 3
    assert "\x1b[31m" not in page.getvalue()


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
