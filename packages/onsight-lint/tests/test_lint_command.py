"""Oracle: the planted scripts, whose findings are known; files compared byte by byte."""

import ast
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from onsight_lint import files
from onsight_lint.cli import main
from onsight_lint.edits import Change, apply_changes, drop_overlaps
from onsight_lint.read import rule_table, select_rules
from onsight_lint.read_many import fix_many, read_many
from onsight_lint.rule import Mistake, Rule
from onsight_lint.script import Library
from onsight_lint.source import parse

HERE = Path(__file__).parent
PLANTED = HERE / "planted"
CLEAN = HERE / "clean"
TRAINS = """
import torch
from torch.utils.data import DataLoader


def train(model, loader, optimizer, criterion, y):
    total = 0
    for x in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
{body}"""
MOVED = "import torch\n\n\ndef step(model, x):\n    x.cuda(){end}\n    model(x).sum().backward()\n"


def lint(*words):
    """Run a command line and return its exit code."""
    return main([*map(str, words)])


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in the working folder that moves a tensor and discards the result."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(MOVED.format(end=""), encoding="utf-8")
    return path


def test_clean_scripts_end_with_0_and_a_summary(capsys):
    assert lint(CLEAN) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{len(rule_table())} rules, nothing found in 7 files\n"


def test_the_text_shows_the_place_the_line_and_its_correction(script, capsys):
    (script.parent / "sound.py").write_text("x = 1\n", encoding="utf-8")
    assert lint() == 1
    out, err = capsys.readouterr()
    assert out.startswith("train.py:5:5 discarded-move [--fix] the result of x.cuda() is discarded")
    assert "  5 |     x.cuda()\n    |     ^^^^^^^^\n  + |     x = x.cuda()\n" in out
    assert err == "1 mistake in 1 of 2 files\n"


def test_a_dash_is_standard_input_and_its_fixed_text_is_printed(script, capsys, monkeypatch):
    """Oracle: what the same text gives as a file; nothing is written."""
    text = script.read_text(encoding="utf-8")
    fixed_text = text.replace("    x.cuda()", "    x = x.cuda()")
    for words, code, out, err in (
        ([], 1, "stdin:5:5 discarded-move", "1 mistake in 1 of 1 file"),
        (["--diff"], 1, "+    x = x.cuda()\n", ""),
        (["--fix"], 0, fixed_text, "rules, nothing found in 1 file"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert lint("-", *words) == code
        printed = capsys.readouterr()
        assert out in printed.out
        assert err in printed.err
    assert printed.out == fixed_text
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]
    assert script.read_text(encoding="utf-8") == text
    assert lint("--fxi") == 2
    assert "Unknown option: --fxi." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--select", "missing"], 0),
        (["--select", "missing,discarded-move"], 1),
        (["--ignore", "discarded-move"], 0),
        (["--select", "nonsense"], 2),
        (["--ignore", "mising-eval"], 2),
        (["nowhere.py"], 2),
        (["pipe.py"], 2),
        (["pipes"], 2),
    ],
)
def test_rules_are_selected_by_the_beginning_of_their_ids(script, capsys, words, code):
    for name in ("pipe.py", "pipes/pipe.py"):  # opening one would block
        (script.parent / name).parent.mkdir(exist_ok=True)
        os.mkfifo(script.parent / name)
    assert lint(*words) == code
    if "mising-eval" in words:
        assert "Did you mean missing-eval" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("  # onsight: ignore", 0),
        ("  # onsight: ignore[discarded-move]", 0),
        ("  # onsight: ignore[missing-eval, discarded-move]", 0),
        ("  # onsight: ignore[missing-eval]", 1),
        ("  # type: ignore", 1),
        ("\n    print('# onsight: ignore-file')", 1),
        ("\n    # onsight: ignore-file", 0),
        ("\n    # onsight: ignore-file[discarded-move]", 0),
        ("\n    # onsight: ignore-file[missing-eval]", 1),
    ],
)
def test_a_comment_silences_its_line_or_its_file(script, end, code):
    script.write_text(MOVED.format(end=end), encoding="utf-8")
    assert lint(script) == code


@pytest.mark.parametrize("content", ["print 1\n", "def f(:\n", "x = '\udcff'\n", "x = 1\0\n"])
def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(script, capsys, content):
    broken = script.parent / "broken.py"
    broken.write_bytes(content.encode(errors="surrogateescape"))
    (script.parent / "empty.py").touch()
    assert lint() == 2
    out, err = capsys.readouterr()
    assert "train.py:5:5" in out
    assert "error: broken.py" in err
    assert err.endswith("1 mistake in 1 of 2 files\n")


def test_a_huge_file_is_not_read(script, capsys):
    (script.parent / "table.py").write_text("x = 1\n" * 800_000, encoding="utf-8")
    assert lint() == 2
    assert "table.py is not read: it is larger than 4 MB" in capsys.readouterr().err


def test_environments_hidden_and_built_folders_are_left_out(script):
    for name in (".git", "build", "node_modules", "own_env", "src"):
        (script.parent / name).mkdir()
        shutil.copy(script, script.parent / name / "copy.py")
    (script.parent / "own_env" / "pyvenv.cfg").touch()
    script.unlink()
    done = read_many([script.parent / "src" / "copy.py"], Library(), select_rules())
    assert lint() == 1
    assert len(done.findings) == 1
    assert lint("build") == 1  # because it is named


@pytest.mark.parametrize(
    "encoded",
    [
        lambda text: text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: f"# coding: latin-1\n# grün\n{text}".encode("latin-1"),
    ],
    ids=["plain", "CRLF", "byte order mark", "latin-1"],
)
def test_fix_changes_the_line_and_no_other_byte(script, encoded):
    script.write_bytes(encoded(MOVED.format(end="")))
    script.chmod(0o750)
    assert lint("--fix") == 0
    right = MOVED.format(end="").replace("    x.cuda()", "    x = x.cuda()")
    assert script.read_bytes() == encoded(right)
    assert script.stat().st_mode & 0o777 == 0o750
    assert lint("--fix") == 0
    assert script.read_bytes() == encoded(right)
    assert os.listdir(script.parent) == ["train.py"]


@pytest.mark.parametrize(
    "coding",
    ["rot13", "undefined", "zlib", "base64", "unicode_escape", "raw_unicode_escape", "mbcs"],
)
def test_a_coding_that_is_not_for_text_files_is_named_and_the_others_are_read(
    script, capsys, coding
):
    odd = script.parent / "odd.py"
    odd.write_text(f"# coding: {coding}\n{MOVED.format(end='')}", encoding="ascii")
    before = odd.read_bytes()
    assert lint("--fix") == 2
    assert odd.read_bytes() == before
    assert "    x = x.cuda()" in script.read_text(encoding="utf-8")
    err = capsys.readouterr().err
    assert "error: odd.py is not " in err
    assert coding in err.lower()


def test_an_endless_standard_input_is_refused(capsys, monkeypatch):
    with open("/dev/zero", "rb") as zeros:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(zeros))
        assert lint("-") == 2
    assert "stdin is not read: it is larger than 4 MB" in capsys.readouterr().err


def test_fix_keeps_the_owner_and_leaves_a_file_with_other_hard_links(script, capsys):
    if os.getuid() == 0:
        os.chown(script, 12_345, 54_321)
    owner = script.stat().st_uid, script.stat().st_gid
    assert lint("--fix") == 0
    assert (script.stat().st_uid, script.stat().st_gid) == owner
    script.write_text(MOVED.format(end=""), encoding="utf-8")
    os.link(script, script.with_name("linked.txt"))
    assert lint("--fix") == 2
    assert script.samefile(script.with_name("linked.txt"))
    assert "train.py is left unchanged: it has other hard links" in capsys.readouterr().err
    assert sorted(os.listdir(script.parent)) == ["linked.txt", "train.py"]


def test_twice_the_code_takes_about_twice_the_calls(tmp_path):
    """Oracle: the function calls of Python, counted for a training loop and one twice as long."""
    lines = ("x = x.add(1)", "log(x).add(y)", "total += loss", "total += loss.item()", "x.to(d)")
    loop = TRAINS.format(body="".join(f"        {line}\n" for line in lines))
    calls, counts = itertools.count(), []
    for repeats in (40, 80):
        script = tmp_path / "train.py"
        statements = loop.partition("        x = x.add(1)")
        script.write_text(statements[0] + repeats * "".join(statements[1:]), encoding="utf-8")
        sys.setprofile(lambda _, event, __: next(calls) if "call" in event else None)
        try:
            read_many([script], Library(), select_rules())
        finally:
            sys.setprofile(None)
        counts.append(next(calls))
    assert counts[1] - counts[0] < 2.3 * counts[0]


def test_diff_prints_what_fix_does_and_changes_nothing(script, capsys):
    before = script.read_bytes()
    assert lint("--diff") == 1
    out = capsys.readouterr().out
    assert "-    x.cuda()\n+    x = x.cuda()\n" in out
    assert script.read_bytes() == before
    patch = shutil.which("patch")
    if patch:
        subprocess.run([patch, "-s", "-p0"], input=out, text=True, check=True)
        assert lint() == 0


def test_a_file_with_mixed_line_endings_is_left_unchanged(script, capsys):
    mixed = MOVED.format(end="\r").encode()
    script.write_bytes(mixed)
    other = script.parent / "xother.py"
    other.write_text(MOVED.format(end=""), encoding="utf-8")
    assert lint("--fix") == 2
    assert script.read_bytes() == mixed
    assert "    x = x.cuda()\n" in other.read_text(encoding="utf-8")
    assert "error: train.py is left unchanged: it mixes line endings" in capsys.readouterr().err


def test_what_is_fixed_in_the_planted_scripts_is_then_sound():
    files = sorted(PLANTED.glob("*.py"))
    rules = select_rules()
    texts, left = fix_many(files, rules)
    assert len(texts) >= 11
    before = read_many(files, Library(), rules).findings
    fixable = {finding.file for finding in before if finding.changes}
    assert fixable == set(texts)
    assert not fixable & {finding.file for finding in left.findings}
    assert fix_many(files, rules)[0] == texts


def test_a_fix_that_would_break_a_file_is_not_made(script):
    def breaks(context):
        for node in context.script.nodes(ast.Expr):
            start = context.script.source(node).start(node)
            yield Mistake(node, "it is wrong", "", changes=[Change(start, start, "def (")])

    texts, left = fix_many([script], [Rule("breaks", "A fix that breaks", "It is wrong.", breaks)])
    assert texts == {}
    assert len(left.findings) == 2


def test_of_changes_that_overlap_the_last_is_made():
    changes = [Change(0, 3, "X"), Change(2, 4, "Y"), Change(4, 6, "Z")]
    assert apply_changes("abcdef", drop_overlaps(changes)) == "abYZ"
    assert apply_changes("ab", drop_overlaps([Change(1, 1, "-"), Change(1, 1, "-")])) == "a-b"
    assert apply_changes("ab", drop_overlaps([Change(1, 1, "-"), Change(1, 1, "+")])) == "a-b"


def test_changes_are_made_in_any_order_unless_they_overlap():
    changes = [Change(4, 6, "Z"), Change(2, 2, "-"), Change(2, 2, "+"), Change(0, 1, "")]
    assert apply_changes("abcdef", changes) == "b-+cdZ"
    with pytest.raises(ValueError, match="overlap at character 2"):
        apply_changes("abcdef", [Change(0, 3, "X"), Change(2, 4, "Y")])


def test_the_formats_for_programs(script, capsys):
    assert lint("--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert (finding["file"], finding["line"], finding["column"]) == ("train.py", 5, 5)
    assert finding["fixed"] == "    x = x.cuda()"
    assert finding["fixable"] is True
    assert report["files"] == 1
    assert lint("--format", "github") == 1
    line = capsys.readouterr().out
    assert line.startswith("::warning file=train.py,line=5,endLine=5,col=5,title=discarded-move::")
    assert line.count("\n") == 1


def test_sarif_has_what_its_standard_requires(script, capsys):
    assert lint("--format", "sarif") == 1
    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert log["version"] == "2.1.0"
    assert driver["name"] == "onsight"
    assert {rule["id"] for rule in driver["rules"]} == set(rule_table())
    assert result["ruleId"] == "discarded-move"
    assert result["message"]["text"]
    assert place["artifactLocation"] == {"uri": "train.py"}
    assert place["region"] == {"startLine": 5, "startColumn": 5, "endLine": 5, "endColumn": 13}


def test_a_module_is_read_with_the_script_that_imports_it_and_only_once(script, monkeypatch):
    folder = script.parent
    script.write_text("import helpers\nfor x in helpers.loader:\n    x.loss.backward()\n")
    (folder / "other.py").write_text(script.read_text())
    (folder / "helpers.py").write_text(MOVED.format(end="") + "loader = []\n")
    read = []
    library = Library()
    monkeypatch.setattr(
        "onsight_lint.script.parse", lambda *args: read.append(args[0]) or parse(*args)
    )
    findings = read_many(sorted(folder.glob("*.py")), library, select_rules()).sorted
    assert [finding.file.name for finding in findings] == ["helpers.py"]
    assert sorted(path.name for path in read) == ["helpers.py", "other.py", "train.py"]


def test_other_processes_find_the_same(monkeypatch):
    files = sorted([*PLANTED.glob("*.py"), *CLEAN.glob("*.py")])
    alone = read_many(files, Library(), select_rules())
    monkeypatch.setattr("onsight_lint.read_many._MIN_FILES_FOR_POOL", 1)
    monkeypatch.setattr("onsight_lint.read_many._can_fork", lambda: True)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert read_many(files, Library(), select_rules()) == alone


INSTALLED = """
import os
from onsight_lint.cli import main
from onsight_lint import read_many

read_many._MIN_FILES_FOR_POOL = 1
os.sched_getaffinity = lambda process: {0, 1}
main(["."])
"""


def test_other_processes_run_nothing_in_the_working_directory(script):
    """What multiprocessing imports first, in a process that it spawns."""
    folder = script.parent
    command = folder / "bin" / "onsight-lint"
    command.parent.mkdir()
    command.write_text(INSTALLED, encoding="utf-8")
    for name in ("pickle", "struct", "typing"):
        (folder / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "discarded-move" in done.stdout
    assert not list(folder.glob("ran-*"))


def test_it_runs_as_a_module_and_ends_quietly_when_its_output_is_closed(script):
    words = [sys.executable, "-m", "onsight_lint", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "discarded-move" in done.stdout
    assert done.stderr == "1 mistake in 1 of 1 file\n"
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "xml"], "argument --format: invalid choice: 'xml'"),
        (["--select"], "argument --select: expected one argument"),
        (["train.py", "--fi"], "Unknown option: --fi."),
    ],
)
def test_wrong_options_are_refused_in_one_line(script, capsys, words, message):
    assert lint(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.endswith("See `onsight-lint --help`.\n")


def test_options_may_stand_between_files(script, capsys):
    (script.parent / "sound.py").write_text("x = 1\n", encoding="utf-8")
    assert lint("sound.py", "--select", "discarded", script) == 1
    assert capsys.readouterr().err == "1 mistake in 1 of 2 files\n"


def test_standard_input_that_is_not_text(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x = '\xff'\n")))
    assert lint("-") == 2
    assert capsys.readouterr().err.startswith("error: stdin is not a Python script")


def save_while(monkeypatch, moment, path, content):
    """Have another program save a file (or delete it: None) when the linter calls a function.

    Returns the names that were beside the file at that moment.
    """
    beside = []
    module, _, name = moment.rpartition(".")
    target = import_module(module)
    done = getattr(target, name)

    def save_and_do(*args, **options):
        if not beside:
            beside.extend(sorted(os.listdir(path.parent)))
            path.unlink() if content is None else path.write_text(content, encoding="utf-8")
        return done(*args, **options)

    monkeypatch.setattr(target, name, save_and_do)
    return beside


@pytest.mark.parametrize(
    "content", ["x = 1\n", MOVED.format(end="  # mine"), None], ids=["new", "similar", "deleted"]
)
@pytest.mark.parametrize(
    "moment",
    ["onsight_lint.read_many.read_many", "onsight_lint.cli.rewrite", "os.fsync", "os.chmod"],
)
def test_fix_leaves_a_file_that_another_program_saved(script, capsys, monkeypatch, moment, content):
    """From the moment that it was read to just before it is replaced; the others are fixed."""
    other = script.parent / "xother.py"  # the later one: the first is replaced first
    shutil.copy(script, other)
    with script.open("a", encoding="utf-8") as file:
        file.write('net = torch.nn.Linear(2, 2)\ntorch.save(net, "net.pt")\n')  # nothing for --fix
    beside = save_while(monkeypatch, moment, script, content)
    assert lint("--fix", "--format", "json") == 2
    out, err = capsys.readouterr()
    problem = "train.py is left unchanged: it changed while the linter ran; run again."
    assert (
        err
        == f"fixed 1 file\nerror: {problem}\n{len(rule_table())} rules, nothing found in 1 file\n"
    )
    assert json.loads(out)["unread"] == {"train.py": problem}
    assert (script.read_text() if script.exists() else None) == content
    assert "    x = x.cuda()\n" in other.read_text(encoding="utf-8")
    left = {"xother.py"} | ({"train.py"} if content else set())
    assert set(os.listdir(script.parent)) == left
    unfinished = set(beside) - {"train.py", "xother.py"}
    assert all(re.fullmatch(r"\.onsight-lint-\w+\.tmp", name) for name in unfinished)
    assert len(unfinished) == (moment in ("os.fsync", "os.chmod"))


def test_a_fix_is_made_from_what_was_read_at_first(script, monkeypatch):
    """A version that exists only while the rules are applied would have other positions."""
    text = script.read_text(encoding="utf-8")
    save_while(monkeypatch, "onsight_lint.read_many.read_many", script, f"import os\n\n{text}")
    save_while(monkeypatch, "onsight_lint.read_many.apply_changes", script, text)
    assert lint("--fix") == 0
    assert script.read_text(encoding="utf-8") == text.replace("    x.cuda()", "    x = x.cuda()")


def test_fix_rewrites_the_target_of_a_link(script):
    link = script.parent / "link" / "train.py"
    link.parent.mkdir()
    link.symlink_to(script)
    assert lint("--fix", link) == 0
    assert link.is_symlink()
    assert "    x = x.cuda()\n" in script.read_text(encoding="utf-8")
    assert [path.name for path in link.parent.iterdir()] == ["train.py"]


def test_a_piped_fix_keeps_encoding_line_ends_and_all_characters(
    tmp_path, monkeypatch, capsysbinary
):
    monkeypatch.chdir(tmp_path)
    text = f"# -*- coding: latin-1 -*-\n# caf\xe9\n{MOVED.format(end='')}".replace("\n", "\r\n")
    for before in (text.encode("latin-1"), "x = '\u2603'\r\n".encode()):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(before)))
        lint("--fix", "-")
        out = capsysbinary.readouterr().out
        if b"latin" in before:
            assert out != before
            assert [*map(len, out.split(b"\r\n"))][:2] == [25, 6]
            assert b"\n" not in out.replace(b"\r\n", b"")
            assert b"caf\xe9\r\n" in out
        else:
            assert out == before


def test_a_file_that_cannot_be_written_keeps_no_other_from_being_fixed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(MOVED.format(end=""))
    replace = files._replace

    def refuse(path, *rest):
        if path.name == "b.py":
            raise PermissionError(13, "Permission denied")
        replace(path, *rest)

    monkeypatch.setattr(files, "_replace", refuse)
    assert lint("--fix") == 2
    assert "cannot write b.py: Permission denied" in capsys.readouterr().err
    changed = [
        (tmp_path / name).read_text() != MOVED.format(end="") for name in ("a.py", "b.py", "c.py")
    ]
    assert changed == [True, False, True]


def test_lines_of_a_diff_end_at_line_feeds_alone(script, capsys):
    script.write_text("\x0c\n" + MOVED.format(end="") + "# \u2028\n", encoding="utf-8")
    lint("--diff")
    _, _, _, *lines = capsys.readouterr().out.removesuffix("\n").split("\n")
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    assert old in script.read_text(encoding="utf-8")


def test_a_folder_has_only_its_own_files(tmp_path, monkeypatch, capsys):
    outside, inside = tmp_path / "other.py", tmp_path / "named"
    inside.mkdir()
    monkeypatch.chdir(tmp_path)
    for path in (outside, inside / "a.py"):
        path.write_text(MOVED.format(end=""))
    (inside / "b.py").symlink_to(inside / "a.py")
    (inside / "c.py").symlink_to(outside)
    assert lint("--fix", "named") == 0
    assert "fixed 1 file" in capsys.readouterr().err
    assert outside.read_text() == MOVED.format(end="")


def test_names_and_lines_cannot_steer_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x\x1b[31m.py").write_text(MOVED.format(end="  # \x1b[2J\u202e"))
    lint()
    lint("no\x1b[31m.py")
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "\\x1b[31m.py" in printed
