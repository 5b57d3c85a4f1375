"""What people and programs read, how the command ends, and that no check can break it."""

import io
import json

import pytest
from rich.console import Console

from onsight.cli import main
from onsight.doctor import examine
from onsight.doctor.gpus import check_gpus
from onsight.doctor.line import Line
from onsight.doctor.show import facts, print_lines, verdict

FINE = Line("memory", "ok", "21.0 GiB of 23.0 GiB free; no swap.", "", {"free_bytes": 1})
NOTE = Line("cache", "note", "The cache is empty.")
SLOW = Line("load", "warning", "1.8 of 2 cores were busy.", "Wait until it ends.")
COMMAND = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu130 --long"
BROKEN = Line("gpus", "problem", "This torch is a CPU-only build.", f"Install another:\n{COMMAND}")


def printed(*lines, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_lines(lines, console)
    return console.file.getvalue()


@pytest.fixture
def checks(monkeypatch):
    """Let the doctor make these checks alone; a line stands for a check that gives it."""

    def choose(*chosen):
        made = [one if callable(one) else (lambda line=one: line) for one in chosen]
        monkeypatch.setattr(examine, "CHECKS", made)

    return choose


def run_doctor(capsys, *words):
    """(exit code, stdout, stderr) of `onsight doctor`."""
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_a_line_has_a_mark_and_a_word_and_its_remedy_below():
    text = printed(FINE, NOTE, SLOW, BROKEN)
    assert "✓ ok       memory: 21.0 GiB of 23.0 GiB free; no swap." in text
    assert "· note     cache: The cache is empty." in text
    assert "! warning  load: 1.8 of 2 cores were busy.\n           -> Wait until it ends." in text
    assert "✗ problem  gpus: This torch is a CPU-only build." in text


def test_sentences_are_wrapped_and_commands_stay_whole():
    long = Line("memory", "warning", "word " * 60 + "end.", f"do {'this ' * 40}\n{COMMAND}")
    text = printed(long)
    assert f"\n              {COMMAND}\n" in text
    others = [line for line in text.splitlines() if COMMAND not in line]
    assert max(len(line) for line in others) <= 80
    assert all(line == line.rstrip() for line in others)
    assert all(line.startswith(" " * 11) for line in others[1:-2])


def test_brackets_in_what_is_said_are_no_markup():
    assert "[red]x[/red] [N/A]" in printed(Line("gpus", "ok", "[red]x[/red] [N/A]."))


def test_colour_is_the_marks_alone():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    print_lines([BROKEN], console)
    text = console.file.getvalue()
    assert text.startswith("\x1b[1;31m✗ problem  \x1b[0m\x1b[1mgpus\x1b[0m: This torch is a CPU")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([FINE, NOTE], "All is well. To begin: onsight train demo"),
        ([FINE, SLOW], "No problem, but 1 warning:"),
        ([SLOW, BROKEN, SLOW], "1 problem and 2 warnings."),
        ([BROKEN, BROKEN], "2 problems."),
    ],
)
def test_the_verdict_counts(lines, words):
    assert verdict(lines).startswith(words)
    assert printed(*lines).splitlines()[-2 if len(verdict(lines)) > 80 else -1] in verdict(lines)


def test_facts_are_plain_values():
    found = json.loads(json.dumps(facts([FINE, SLOW, BROKEN])))
    assert (found["problems"], found["warnings"]) == (1, 1)
    assert found["lines"][0] == {
        "topic": "memory",
        "state": "ok",
        "said": FINE.said,
        "remedy": "",
        "figures": {"free_bytes": 1},
    }


# ------------------------------------------------------------- the whole command


def test_a_check_that_fails_is_a_warning_that_names_its_error(checks):
    def check_gpu_memory():
        raise ZeroDivisionError("no GPUs to divide by")

    told = []
    checks(lambda: FINE, check_gpu_memory, lambda: None, lambda: BROKEN)
    lines = examine.examine(tell=told.append)
    assert [line.topic for line in lines] == ["memory", "gpu memory", "gpus"]
    assert lines[1].state == "warning"
    assert "ZeroDivisionError: no GPUs to divide by" in lines[1].said
    assert told[1] == "gpu memory"


def test_an_interrupt_is_no_failed_check(checks):
    def check_speed():
        raise KeyboardInterrupt

    checks(check_speed)
    with pytest.raises(KeyboardInterrupt):
        examine.examine()


@pytest.mark.parametrize(
    ("lines", "code"), [((FINE, NOTE), 0), ((FINE, SLOW), 0), ((FINE, BROKEN, SLOW), 1)]
)
def test_the_command_ends_with_1_on_a_problem_alone(checks, capsys, lines, code):
    checks(*lines)
    ended, out, err = run_doctor(capsys)
    assert ended == code
    assert "error" not in err
    assert verdict(lines)[:40] in out
    ended, out, _ = run_doctor(capsys, "--json")
    assert ended == code
    assert json.loads(out) == facts(lines)


@pytest.mark.usefixtures("published")
def test_a_cpu_only_torch_beside_a_gpu_ends_with_1_and_the_line_to_type(
    checks, capsys, add_gpu, torch_sees
):
    add_gpu()
    torch_sees(0, cuda=None)
    checks(check_gpus)
    code, out, err = run_doctor(capsys)
    assert code == 1
    assert (
        "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu130\n" in out
    )
    assert "Traceback" not in err


def test_topics_are_told_apart():
    topics = [examine.topic_of(check) for check in examine.CHECKS]
    assert len(set(topics)) == len(topics)
