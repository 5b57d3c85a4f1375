"""`onsight recipes` on a terminal and in a pipe."""

import io

import pytest
from rich.console import Console

from onsight.report.console import print_recipe

ABOUT = {
    "data": "[bold]cifar10[/]",
    "reproduces": "a net " * 40 + "end-of-it",
    "published": "7 s",
    "measured": "5 s",
    "stand_in": "any images: onsight train --recipe first-try --data demo",
}


def printed(**kind: object) -> str:
    file = io.StringIO()
    print_recipe("first-try", ABOUT, Console(file=file, soft_wrap=True, **kind))
    return file.getvalue()


def test_in_a_pipe_every_fact_is_whole_on_its_line() -> None:
    lines = printed(width=80).splitlines()
    facts = dict(line.strip().split(None, 1) for line in lines[1:-1] if "also on" not in line)
    assert lines[0] == "first-try"
    assert facts.pop("command") == "onsight train --recipe first-try"
    assert facts == {key: ABOUT[key] for key in ("data", "reproduces", "published", "measured")}
    assert f"  also on     {ABOUT['stand_in']}" in lines
    assert lines[-1] == ""


@pytest.mark.parametrize("width", [50, 80])
def test_on_a_terminal_no_line_is_wider_than_it(width: int) -> None:
    lines = printed(width=width, force_terminal=True, color_system=None).splitlines()
    assert max(len(line) for line in lines) <= width
    assert " ".join(" ".join(lines).split()).count("a net") == 40
    assert any(line == " " * 14 + line.strip() and "end-of-it" in line for line in lines)
