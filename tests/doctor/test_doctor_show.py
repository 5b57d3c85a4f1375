"""The printed and the JSON report, the exit code, and that no failing check can break them."""

import io
import json

import pytest
from rich.console import Console

from onsight.cli import main
from onsight.doctor import examine
from onsight.doctor.gpus import check_gpus
from onsight.doctor.report import CheckResult, facts, print_results, verdict

FINE = CheckResult("ok", "21.0 GiB of 23.0 GiB free; no swap.", "", {"free_bytes": 1})
NOTE = CheckResult("note", "The cache is empty.")
SLOW = CheckResult("warning", "1.8 of 2 cores were busy.", "Wait until it ends.")
COMMAND = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu130 --long"
BROKEN = CheckResult("problem", "This torch is a CPU-only build.", f"Install another:\n{COMMAND}")


def by_number(*lines):
    """Lines under topics that do not matter."""
    return {str(number): line for number, line in enumerate(lines)}


def printed(width=80, **lines):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_results(lines, console)
    return console.file.getvalue()


@pytest.fixture
def checks(monkeypatch):
    """Let the doctor make only these checks; a line stands for a check that returns it."""

    def choose(**chosen):
        made = {
            topic: one if callable(one) else (lambda line=one: line)
            for topic, one in chosen.items()
        }
        monkeypatch.setattr(examine, "CHECKS", made)

    return choose


def run_doctor(capsys, *words):
    """(exit code, stdout, stderr) of `onsight doctor`."""
    with pytest.raises(SystemExit) as stop:
        main(["doctor", *words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_a_line_has_a_mark_and_a_word_and_its_remedy_below():
    text = printed(memory=FINE, cache=NOTE, load=SLOW, gpus=BROKEN)
    assert "✓ ok       memory: 21.0 GiB of 23.0 GiB free; no swap." in text
    assert "· note     cache: The cache is empty." in text
    assert "! warning  load: 1.8 of 2 cores were busy.\n           -> Wait until it ends." in text
    assert "✗ problem  gpus: This torch is a CPU-only build." in text


def test_sentences_are_wrapped_and_commands_stay_whole():
    long = CheckResult("warning", "word " * 60 + "end.", f"do {'this ' * 40}\n{COMMAND}")
    text = printed(memory=long)
    assert f"\n              {COMMAND}\n" in text
    others = [line for line in text.splitlines() if COMMAND not in line]
    assert max(len(line) for line in others) <= 80
    assert all(line == line.rstrip() for line in others)
    assert all(line.startswith(" " * 11) for line in others[1:-2])


def test_brackets_in_a_message_are_not_markup():
    assert "[red]x[/red] [N/A]" in printed(gpus=CheckResult("ok", "[red]x[/red] [N/A]."))


def test_only_the_marks_are_coloured():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    print_results({"gpus": BROKEN}, console)
    text = console.file.getvalue()
    assert text.startswith("\x1b[1;31m✗ problem  \x1b[0m\x1b[1mgpus\x1b[0m: This torch is a CPU")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([FINE, NOTE], "No problems found. To begin: onsight train demo"),
        ([FINE, SLOW], "No problems, but 1 warning:"),
        ([SLOW, BROKEN, SLOW], "1 problem and 2 warnings."),
        ([BROKEN, BROKEN], "2 problems."),
    ],
)
def test_the_verdict_counts(lines, words):
    said = verdict(by_number(*lines))
    assert said.startswith(words)
    assert printed(**by_number(*lines)).splitlines()[-2 if len(said) > 80 else -1] in said


def test_facts_are_plain_values():
    lines = {"memory": FINE, "load": SLOW, "gpus": BROKEN}
    found = json.loads(json.dumps(facts(lines)))
    assert (found["problems"], found["warnings"]) == (1, 1)
    assert found["checks"][0] == {
        "check": "memory",
        "status": "ok",
        "message": FINE.message,
        "remedy": "",
        "figures": {"free_bytes": 1},
    }


# ------------------------------------------------------------- the whole command


def test_a_check_that_fails_is_a_warning_that_names_its_error(checks):
    def fail():
        raise ZeroDivisionError("no GPUs to divide by")

    told = []
    checks(memory=FINE, gpu_memory=fail, disk=lambda: None, gpus=BROKEN)
    lines = examine.examine(on_check=told.append)
    assert list(lines) == ["memory", "gpu_memory", "gpus"]
    assert lines["gpu_memory"].status == "warning"
    assert "ZeroDivisionError: no GPUs to divide by" in lines["gpu_memory"].message
    assert told == ["memory", "gpu_memory", "disk", "gpus"]


def test_an_interrupt_is_not_a_failed_check(checks):
    def interrupt():
        raise KeyboardInterrupt

    checks(speed=interrupt)
    with pytest.raises(KeyboardInterrupt):
        examine.examine()


@pytest.mark.parametrize(
    ("lines", "code"), [((FINE, NOTE), 0), ((FINE, SLOW), 0), ((FINE, BROKEN, SLOW), 1)]
)
def test_the_command_exits_with_1_only_on_a_problem(checks, capsys, lines, code):
    lines = by_number(*lines)
    checks(**lines)
    ended, out, err = run_doctor(capsys)
    assert ended == code
    assert "error" not in err
    assert verdict(lines)[:40] in out
    ended, out, _ = run_doctor(capsys, "--json")
    assert ended == code
    assert json.loads(out) == facts(lines)


@pytest.mark.usefixtures("published")
def test_a_cpu_only_torch_on_a_gpu_machine_exits_with_1_and_shows_the_command(
    checks, capsys, add_gpu, torch_sees
):
    add_gpu()
    torch_sees(0, cuda=None)
    checks(gpus=check_gpus)
    code, out, err = run_doctor(capsys)
    assert code == 1
    assert (
        "pip install torch torchvision --index-url https://download.pytorch.org/whl/cu130\n" in out
    )
    assert "Traceback" not in err
