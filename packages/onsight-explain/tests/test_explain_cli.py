"""The command line: what it accepts and refuses, and what it passes on."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from onsight_explain import cli
from onsight_explain.explain import Explained


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('never run')\n")
    return path


@pytest.fixture
def explained(monkeypatch):
    """The arguments of `explain`, which does nothing."""
    seen = SimpleNamespace(args=None, options=None, delivery=None, is_sound=True)

    def explain(*args, **options):
        seen.args, seen.options = args, options
        return Explained(seen, lambda found: {"verdict": "fast"}, lambda found, console: None)

    monkeypatch.setattr(cli, "explain", explain)
    return seen


def test_help_names_every_option_without_loading_torch():
    code = "import sys; from onsight_explain.cli import main\ntry: main(['--help'])\n"
    code += "finally: assert not {'torch', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for option in ("--seconds", "--quick", "--no-what-ifs", "--write", "--trace", "--html"):
        assert option in done.stdout


@pytest.mark.parametrize("flag", ["--seconds", "--limit"])
@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "0", "-1"])
def test_a_time_that_is_none_is_refused(capsys, script, flag, number):
    code, _, err = run(capsys, script, f"{flag}={number}")
    assert code == 2
    assert f"{flag} is {float(number):g}; it must be a number of seconds above 0" in err


def test_a_terminal_that_knows_only_ascii_gets_escapes(script):
    words = [sys.executable, "-m", "onsight_explain", script.with_name("tränen.py")]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"tr\\xe4nen.py does not exist" in done.stderr


def test_words_after_the_dashes_belong_to_the_script(capsys, script, explained):
    words = ("--seconds", "5", script, "first", "--json", "--", "--json", "--", "--epochs", "3")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert json.loads(out) == {"verdict": "fast"}
    assert explained.args == (script, ["first", "--json", "--", "--epochs", "3"])
    assert explained.options["seconds"] == 5
    assert explained.options["what_ifs"]


def test_a_setting_of_the_script_before_the_dashes_is_explained(capsys, script):
    code, _, err = run(capsys, script, "--epochs", "3")
    assert code == 2
    assert err.startswith("error: unknown option --epochs")
    assert f"{script} -- --epochs" in err
    assert err.count("\n") == 1


def test_only_the_script_is_required(capsys):
    code, _, err = run(capsys)
    assert code == 2
    assert err.startswith("error: the following arguments are required: SCRIPT.py. See ")


@pytest.mark.parametrize("is_sound", [True, False])
def test_the_exit_code_of_the_simulated_gpu(capsys, script, explained, is_sound):
    explained.is_sound = is_sound
    assert run(capsys, script, "--simulate-gpu")[0] == 1 - is_sound


def test_quick_takes_half_a_minute_at_most(capsys, script, explained):
    run(capsys, script, "--quick")
    assert explained.options["seconds"] == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--write", "fixed.py", "--simulate-gpu"], "--write needs changes to try out"),
        (["--write", "fixed.py", "--no-what-ifs"], "--write needs changes to try out"),
        (["--trace", "trace.json", "--simulate-gpu"], "remove --simulate-gpu"),
        (["--trace", "."], "is a folder"),
        (["--html", "other.py"], "name a file that ends in .html"),
    ],
)
def test_wrong_options_are_explained(capsys, script, words, message):
    code, out, err = run(capsys, script, *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.ipynb", "jupyter nbconvert --to script"),
        ("photos", "is not a Python file"),
        ("missing.py", "does not exist"),
    ],
)
def test_what_is_no_script_is_explained(capsys, tmp_path, name, message):
    code, _, err = run(capsys, tmp_path / name)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("option", ["--trace", "--write"])
@pytest.mark.parametrize("kind", ["itself", "link"])
def test_no_output_replaces_the_script(capsys, script, option, kind):
    target = script
    if kind == "link":
        target = script.with_name("link.py")
        target.symlink_to(script)
    before = script.read_bytes()
    code, _, err = run(capsys, script, option, target)
    assert code == 2
    assert option in err
    assert script.read_bytes() == before


@pytest.mark.parametrize("words", [("--trace", "a.json"), ("--write", "fixed.py"), ("pipe.py",)])
def test_a_fifo_is_neither_waited_for_nor_replaced(capsys, script, words):
    *option, name = words
    os.mkfifo(pipe := script.with_name(name))
    code, _, err = run(capsys, *([script] if option else []), *option, pipe)
    assert code == 2
    assert " ".join([*option, f"{pipe} is "]) in err
    assert pipe.is_fifo()


def test_what_sigterm_ends_is_cleaned_up(capsys, script, monkeypatch):
    cleaned = []

    def explain(*args, **options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(True)

    monkeypatch.setattr(cli, "explain", explain)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run(capsys, script)[0] == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert cleaned


def test_a_failure_does_not_steer_the_terminal(capsys, tmp_path):
    code, _, err = run(capsys, tmp_path / "\x1b[2J.py")
    assert code == 2
    assert "\\x1b[2J.py does not exist" in err
    assert "\x1b" not in err
