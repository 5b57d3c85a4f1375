"""What `onsight train` prints about a run's results, besides the table of classes."""

import io
import json

import pytest
from rich.console import Console
from rich.table import Table

from onsight.choice import Choice
from onsight.report.console import (
    BarReporter,
    PartReporter,
    Reporter,
    WrappingConsole,
    print_results,
)


def printed(results, **options):
    page = io.StringIO()
    print_results(results, Console(file=page, width=200), **options)
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


def test_a_class_with_hardly_any_image_is_not_called_the_weakest(trained):
    results = json.loads((trained.path / "results.json").read_text())
    results["classes"][0] |= {"name": "rare", "images": 3, "recall": 0.0}
    assert "rare" not in printed(results, is_brief=True)


def test_an_accuracy_that_guessing_would_reach_is_called_so(trained):
    results = json.loads((trained.path / "results.json").read_text())
    assert "not significantly better" not in printed(results, is_brief=True)
    results |= {"accuracy": 0.375, "accuracy_low": 0.137, "images": 8}
    for row, images in zip(results["classes"], (5, 3), strict=True):
        row["images"] = images
    expected = "It is not significantly better than always predicting 'across'"
    assert expected in printed(results, is_brief=True)


def test_a_brief_result_names_the_weakest_classes_only(trained):
    results = json.loads((trained.path / "results.json").read_text())
    results["learning_curve"] = {"gain": 0.02, "gain_low": 0.01, "gain_high": 0.03, "points": [1]}
    recalls = {"a": 0.9, "b": 0.25, "c": None, "d": 0.5, "e": 1.0, "f": 0.75}
    row = results["classes"][0] | {"images": 8}
    results["classes"] = [row | {"name": name, "recall": share} for name, share in recalls.items()]
    headline, weakest, outlook = printed(results, is_brief=True).splitlines()
    assert headline.startswith("accuracy ")
    assert headline.endswith(" test images)")
    assert weakest == "lowest recall: b 25.0% of 8, d 50.0% of 8 and f 75.0% of 8"
    assert outlook.startswith("With twice the training images")
    results["classes"] = [row | {"name": name, "recall": 1.0} for name in "ab"]
    assert "recall" not in printed(results, is_brief=True)


def test_details_are_for_verbose_reporters_and_choices_of_a_resumed_run_for_none():
    page = io.StringIO()
    choices = {"model": False, "precision": True}

    def report(reporter):
        for name, is_detail in choices.items():
            reporter.choice(name, Choice("x", "why"), is_detail=is_detail)
        reporter.detail("detail")
        reporter.warn("warning")
        for number in range(3):
            reporter.progress(f"epoch {number}")
        lines = page.getvalue().splitlines()
        page.seek(0)
        page.truncate()
        return lines

    console = Console(file=page, width=200)
    brief, verbose = Reporter(console), Reporter(console, verbose=True)
    assert report(brief) == ["model: x (why)", "note: warning", "epoch 0"]
    epochs = [f"epoch {number}" for number in range(3)]
    detailed = ["model: x (why)", "precision: x (why)", "detail", "note: warning", *epochs]
    assert report(verbose) == detailed
    assert report(PartReporter(verbose, "head"))[-1] == "head: epoch 2"
    assert report(BarReporter(console)) == ["note: warning"]
    verbose.shows_choices = False
    assert report(verbose) == detailed[2:]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_wrap_between_words_on_a_terminal(is_terminal):
    page = io.StringIO()
    console = WrappingConsole(file=page, width=30, force_terminal=is_terminal)
    text = "every word of this long line stays in one piece on a terminal"
    Reporter(console).say(text)
    lines = page.getvalue().splitlines()
    assert [len(line) <= 30 for line in lines] == [is_terminal] * len(lines)
    assert " ".join(" ".join(lines).split()) == text
