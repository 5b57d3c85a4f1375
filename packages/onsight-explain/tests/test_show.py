"""What an explanation looks like: one screen, a page with the same text, nothing that steers."""

import io
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from onsight_explain.ceilings import Ceilings
from onsight_explain.console import StderrMessages, TextConsole
from onsight_explain.delivery.fixed_script import FixedScript, list_cautions
from onsight_explain.diagnosis.explain import Explanation
from onsight_explain.diagnosis.show import facts, print_explanation
from onsight_explain.explain import Explained
from onsight_explain.paired_timing import RatioInterval
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.search import SearchResult, TrialResult
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Cause, make_what_ifs
from onsight_lint.rule import Finding

SCREEN_LINES, SCREEN_COLUMNS = 42, 100
SCRIPT = """import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=4)
for epoch in range(3):
    for images, labels in loader:
        loss = net(images).sum()
        loss.backward()
        optimizer.step()
"""


def result(low, ratio, high, rounds=3, **changes):
    interval = RatioInterval(low, ratio, high, rounds)
    return TrialResult(tuple(make_what_ifs(changes)), 100 * ratio, interval, "same")


@pytest.fixture
def explanation(tmp_path):
    """With a long diff, many changes, and mistakes in its text."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    loader = LoaderFacts(
        site=Site(file=str(script), line=4),
        batch_size=4,
        workers=0,
        is_pinned=False,
        is_persistent=False,
        is_shuffled=True,
        items=1000,
    )
    trace = Trace(
        ended="window",
        startup_seconds=12.5,
        seconds=10.0,
        steps=100,
        images=400,
        phases={"data": 5.0, "forward": 2.0, "backward": 2.0, "optimizer": 0.6, "other": 0.4},
        loader=loader,
        batch_size=4,
        shape=[3, 32, 32],
        threads=2,
        flops=10**9,
        bytes=10**8,
    )
    best = result(4.9, 5.1, 5.3, batch_factor=16, bf16=True)
    unsure = result(0.57, 7.8, 105.3, short_spin=True)
    tried = [unsure, result(2.0, 2.1, 2.2, bf16=True), result(0.9, 1.0, 1.1, workers=2)]
    added = "".join(f"line {number}\n" for number in range(60))
    after = added + SCRIPT.replace("batch_size=4", "batch_size=64")
    return Explanation(
        script=script,
        trace=trace,
        ceilings=Ceilings({"fp32": 1e11}, copy_bytes_per_second=1e10, threads=1),
        rates=[40.0],
        search=SearchResult(tried, best, [39.0, 41.0], [], [0.98, 1.04, 1.01]),
        best=best,
        fixed=FixedScript(script, SCRIPT.encode(), after.encode(), [], []),
        cautions=list_cautions(best.changes, trace),
        cause=Cause("small-batch", "a step of 4 images takes 0.10 s"),
        findings=[
            Finding(script, line, 1, line, 5, "rule", "a mistake", "", "") for line in range(1, 6)
        ],
        seconds=55.0,
    )


def shown(explanation, **settings):
    page = io.StringIO()
    print_explanation(explanation, TextConsole(file=page, width=SCREEN_COLUMNS, **settings))
    return page.getvalue()


def test_all_that_matters_is_on_one_screen(explanation):
    text = shown(explanation)
    assert len(text.splitlines()) <= SCREEN_LINES
    assert text.startswith("A step of 4 images takes 0.10 s; with batch 0 + bf16 autocast it is at")
    assert "set-up of 12.5 s" in text
    assert (
        "-loader = DataLoader(data, batch_size=4)\n+loader = DataLoader(data, batch_size=64)"
        in text
    )
    assert "57 more lines" in text
    assert "train.py:3: a mistake" in text
    assert "train.py:4" not in text
    assert "raise the learning rate" in " ".join(text.split())
    assert "gains count from 1.10x" in " ".join(text.split())


def test_changes_are_ranked_by_what_they_gain_at_least(explanation):
    """7.8 times as fast, 0.57 to 105, is no gain."""
    text = " ".join(shown(explanation).split())
    assert "No gain shown: short spin-waits of threads (7.8x, 0.57 to 105.30) and 2 workers" in text
    assert text.index("5.1x 4.9 to 5.3") < text.index("2.1x 2.0 to 2.2")


def test_a_change_that_was_confirmed_is_not_listed_without_a_gain(explanation):
    """It may have had a single round before the rounds that confirmed it."""
    confirmed = result(1.36, 1.57, 1.8, rounds=8, bf16=True)
    once = [result(0.0, 1.57, math.inf, rounds=1, bf16=True), result(0.9, 1.0, 1.1, workers=2)]
    search = replace(explanation.search, results=once, best=confirmed)
    text = " ".join(shown(replace(explanation, search=search, best=confirmed)).split())
    assert "bf16 autocast 157 1.57x 1.36 to 1.80" in text
    assert "2 of 2 changes tried" in text
    assert "No gain shown: 2 workers (1.00x, 0.90 to 1.10)." in text
    refuted = replace(explanation, search=search, best=result(0.9, 1.2, 1.6, rounds=8, bf16=True))
    text = " ".join(shown(refuted).split())
    assert "(1.00x, 0.90 to 1.10) and bf16 autocast (1.20x, 0.90 to 1.60)." in text


def test_a_single_round_shows_no_gain_and_is_named(explanation):
    search = replace(explanation.search, results=[result(0.0, 1.57, math.inf, 1, bf16=True)])
    text = " ".join(shown(replace(explanation, search=search)).split())
    assert "No gain shown: bf16 autocast (1.57x, 1 round)." in text


def test_the_page_has_the_text_of_the_screen_and_all_added_lines(explanation, tmp_path):
    explanation = replace(explanation, script=Path("<b>train</b>.py"))
    Explained(explanation, facts, print_explanation).write_page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<b>train" not in page
    text = unescape(re.sub("<[^>]*>", "", page.partition("<pre>")[2].partition("</pre>")[0]))
    before, _, after = shown(explanation).partition("+ ... 57 more lines\n")
    added = "".join(f"+line {number}\n" for number in range(3, 60))
    assert text.split() == [*before.split(), *added.split(), *after.split()]


def test_names_neither_steer_the_terminal_nor_become_pictures(explanation, capsys):
    hostile = Path("\x1b[31m:smile:[bold]\x9b.py")
    text = shown(replace(explanation, script=hostile), force_terminal=True, color_system=None)
    StderrMessages().say(str(hostile))
    StderrMessages().warn(str(hostile))
    for output in (text, capsys.readouterr().err):
        assert "\\x1b[31m:smile:[bold]\\x9b.py" in output
        assert "\x1b[31m:" not in output
        assert "\x9b" not in output
        assert "\N{SMILING FACE WITH OPEN MOUTH AND SMILING EYES}" not in output
