"""Lines on stderr, as the trainer's reporter prints them."""

import io
import sys

import pytest

from onsight.report.console import Reporter
from onsight_explain.console import StderrMessages

LINES = ["running train.py", "[bold]no markup[/]", "a" * 200, "a read at train.py:7: 40%"]


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}])
@pytest.mark.parametrize("kind", ["say", "warn"])
def test_they_look_as_those_of_the_reporter(capsys, monkeypatch, kind, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = []
    for messages in (StderrMessages(), Reporter()):
        for line in LINES:
            getattr(messages, kind)(line)
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert LINES[1] in said[0]


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text):
        raise BrokenPipeError


def test_nothing_ends_when_nobody_reads(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Gone())
    StderrMessages().say("hello")
    StderrMessages().warn("hello")
