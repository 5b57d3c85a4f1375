"""A sweep from outside: real runs in processes of their own, killed, resumed, failing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import onsight
from onsight.cli import main
from onsight.errors import ConfigError, Interrupted, OutputError, UserError
from onsight.report.console import Reporter, SilentReporter
from onsight.sweeper import child, runs
from onsight.sweeper.plan import PlannedRun, claim_sweep
from onsight.sweeper.sweep import sweep

SLIGHT = {"epochs": 1, "batch_size": 16, "threads": 1, "precision": "fp32", "plan": "default"}


@pytest.fixture
def asked(monkeypatch, trained):
    """What would have been asked of each process; every run is a finished one's copy."""
    requests = []

    def answer(request):
        requests.append(request)
        model = request["fields"].get("model", "")
        if model == "nosuch":
            return {"error": "there is no model 'nosuch'", "exit_code": 2}
        if model == "stop":
            return {"error": "stopped", "exit_code": 130}
        os.system(f"cp -r {trained.path} '{request['out']}'")
        return {"run": request["out"]}

    monkeypatch.setattr(runs, "_run_child", answer)
    return requests


def quiet_sweep(data, tries, out, **fields):
    return sweep(data, tries, out=out, reporter=SilentReporter(), **fields)


def test_a_failing_run_is_listed_and_ends_nothing(shared_bars, tmp_path, asked):
    found = quiet_sweep(shared_bars, ["model=nosuch,compact,lenet"], tmp_path / "s", **SLIGHT)
    assert [(run.name, run.error) for run in found.failed] == [
        ("1-model=nosuch", "there is no model 'nosuch'")
    ]
    assert [run.name for run in found.runs] == ["2-model=compact", "3-model=lenet"]
    assert "failed: 1-model=nosuch: there is no model 'nosuch'" in str(found)
    assert "expected accuracy: " in str(found)
    assert found.page == tmp_path / "s" / "compare.html"
    assert [request["fields"]["folds"] for request in asked] == ["1"] * 3
    assert asked[0]["fields"].items() >= SLIGHT.items()


def test_no_run_that_finished(shared_bars, tmp_path, asked):
    with pytest.raises(UserError, match="all for the same reason: there is no model 'nosuch'"):
        quiet_sweep(shared_bars, ["seed=1,2"], tmp_path / "s", model="nosuch")


def test_a_single_run_is_compared_with_none(shared_bars, tmp_path, asked):
    found = quiet_sweep(shared_bars, ["seed=1"], tmp_path / "s")
    assert found.page is None
    assert "best of" not in str(found)
    assert found.facts()["differences"] == []


def test_a_signal_ends_the_sweep_and_says_how_to_go_on(shared_bars, tmp_path, asked):
    with pytest.raises(Interrupted, match="--resume") as stop:
        quiet_sweep(shared_bars, ["model=compact,stop,lenet"], tmp_path / "s")
    assert stop.value.exit_code == 130
    assert len(asked) == 2


def test_a_resumed_sweep_keeps_what_finished_and_its_settings(shared_bars, tmp_path, asked):
    tries, out = ["seed=1,2"], tmp_path / "s"
    quiet_sweep(shared_bars, tries, out, epochs=1)
    asked.clear()
    quiet_sweep(shared_bars, tries, out, epochs=1, resume=True)
    assert asked == []
    (out / "2-seed=2" / "results.json").unlink()
    with pytest.raises(ConfigError, match="fields would change"):
        quiet_sweep(shared_bars, tries, out, epochs=2, resume=True)
    with pytest.raises(OutputError, match="already holds files"):
        quiet_sweep(shared_bars, tries, out, epochs=1)
    with pytest.raises(OutputError, match="nothing to resume"):
        quiet_sweep(shared_bars, tries, tmp_path / "other", resume=True)
    with pytest.raises(OutputError, match="inside the data"):
        quiet_sweep(shared_bars, tries, shared_bars / "s")


def test_a_resumed_sweep_names_what_was_altered(shared_bars, tmp_path, asked):
    tries, out = ["seed=1,2"], tmp_path / "s"
    quiet_sweep(shared_bars, tries, out, epochs=1)
    results = json.loads((out / "1-seed=1" / "results.json").read_text())
    for name, text, message in (
        ("1-seed=1/results.json", json.dumps(results | {"accuracy": "high"}), "damaged: accuracy"),
        ("1-seed=1/results.json", '{"report": "x"}', "1-seed=1 has no results; remove it"),
    ):
        kept = (out / name).read_text()
        (out / name).write_text(text)
        with pytest.raises(OutputError, match=message):
            quiet_sweep(shared_bars, tries, out, epochs=1, resume=True)
        (out / name).write_text(kept)
    (out / "1-seed=1" / "results.json").write_text("[1]")
    assert not PlannedRun(out / "1-seed=1", {}, {}).is_finished
    for text in ("[1]", "[" * 100_000):
        (out / "sweep.json").write_text(text)
        with pytest.raises(OutputError, match="is not the folder of a sweep"):
            quiet_sweep(shared_bars, tries, out, epochs=1, resume=True)


def test_runs_that_held_out_different_images_have_a_winner_but_are_not_compared(
    shared_bars, tmp_path, asked
):
    tries, out = ["seed=1,2"], tmp_path / "s"
    quiet_sweep(shared_bars, tries, out)
    table = out / "2-seed=2" / "predictions.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *(f"other/{row[:-8]}{'0' * 8}" for row in rows)]))
    found = quiet_sweep(shared_bars, tries, out, resume=True)
    assert found.winner.name == "1-seed=1"
    assert "note: the runs are not compared: no image was held out by both runs" in str(found)
    assert found.facts()["differences"] == []
    assert "not compared" in found.facts()["notes"][0]


def test_a_resumed_sweep_says_that_files_have_changed(bars, tmp_path, asked, capsys):
    tries, out = ["seed=1,2"], tmp_path / "s"
    quiet_sweep(bars, tries, out, epochs=1)
    reporter = Reporter()
    sweep(bars, tries, out=out, reporter=reporter, epochs=1, resume=True)
    assert "have changed" not in capsys.readouterr().err
    next(bars.rglob("*.png")).unlink()
    sweep(bars, tries, out=out, reporter=reporter, epochs=1, resume=True)
    assert f"files in {bars} have changed since this sweep began" in capsys.readouterr().err


def test_a_run_that_had_begun_resumes_with_its_own_config(tmp_path, asked):
    named = {"model": "mine:Net", "cache_folder": "fast", "checkpoints": "safe"}
    run = PlannedRun(tmp_path / "1-x", {}, {**named, "epochs": 3})
    run.path.mkdir()
    (run.path / "config.toml").write_text("epochs = 3")
    runs.train_run(run, "demo")
    assert asked[0]["resume"] is True
    assert asked[0]["fields"] == named  # code and places to write to are named by the user alone


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"seed": 3}, "--seed is also in --try"),
        ({"folds": "5"}, "remove --folds"),
        ({"test_fraction": 0}, "must be above 0"),
        ({"cluster": "here"}, "give auto"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_run(
    shared_bars, tmp_path, asked, fields, expected
):
    with pytest.raises(ConfigError, match=expected):
        quiet_sweep(shared_bars, ["seed=1,2"], tmp_path / "s", **fields)
    assert asked == []


def test_two_sweeps_in_one_folder(tmp_path):
    with (
        claim_sweep(tmp_path / "s", {}, "", resume=False),
        pytest.raises(OutputError, match="in use"),
        claim_sweep(tmp_path / "s", {}, "", resume=True),
    ):
        pass


def test_a_process_that_dies_without_a_word_is_a_failed_run(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    answer = runs._run_child({})
    assert answer == {"error": "its process ended with exit code 1; its messages are above",
                    "exit_code": 1}  # fmt: skip
    assert "ended by SIGKILL" in runs._describe_exit(-signal.SIGKILL)


def test_a_killed_sweep_goes_on_where_it_was(shared_bars, tmp_path, capsys, hostile_folder):
    out = tmp_path / "s"
    fields = [f"--{name.replace('_', '-')}={value}" for name, value in SLIGHT.items()]
    fields += ["--model=linear", f"--out={out}", f"--cache-folder={tmp_path / 'cache'}"]
    fields += ["--log=none"]  # importing TensorBoard takes a second
    words = ["sweep", str(shared_bars), "--try=seed=2", *fields]
    command = [sys.executable, "-m", "onsight", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as started:
        while not (out / "1-seed=2" / "config.toml").exists():
            assert started.poll() is None, started.stderr.read()
            time.sleep(0.05)
        started.kill()
        started.communicate()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json", "--resume"])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "run 1 of 1: 1-seed=2, resumed" in said.err
    assert json.loads(said.out)["winner"] == "1-seed=2"
    alone = onsight.train(
        shared_bars, out=tmp_path / "run", reporter=SilentReporter(), folds="1", model="linear",
        seed=2, **SLIGHT,
    )  # fmt: skip
    swept = (out / "1-seed=2" / "predictions.csv").read_bytes()
    assert swept == (alone.path / "predictions.csv").read_bytes()


def test_the_command_without_out_to_resume(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "demo", "--try", "seed=1,2", "--resume"])
    assert stop.value.code == 2
    assert "--resume needs --out" in capsys.readouterr().err


@pytest.mark.parametrize("verbose", [False, True])
def test_a_run_of_a_sweep_prints_lines_only_if_asked(trained, capsys, monkeypatch, verbose):
    def train(data, reporter, **request):
        reporter.say("a line")
        reporter.warn("a warning")
        return trained

    monkeypatch.setattr("onsight.training.run.train", train)
    child._train({"data": "demo", "out": "s/1", "resume": False, "fields": {}, "verbose": verbose})
    assert capsys.readouterr().err == "a line\n" * verbose + "note: a warning\n"


def test_run_locally_says_which_run_it_is_at(tmp_path, asked):
    said = []
    reporter = SilentReporter()
    reporter.say = said.append
    planned = [PlannedRun(tmp_path / name, {}, {}) for name in ("a", "b")]
    assert runs.run_locally(planned, "demo", reporter) == {"a": "", "b": ""}
    assert said == ["run 1 of 2: a", "run 2 of 2: b"]


def test_a_run_whose_folder_is_in_use_fails_alone(tmp_path, asked, monkeypatch):
    def refuse(run):
        raise OutputError("in use")

    monkeypatch.setattr(runs, "_wait_for_stale_process", refuse)
    planned = [PlannedRun(tmp_path / name, {}, {}) for name in ("a", "b")]
    assert runs.run_locally(planned, "demo", SilentReporter()) == {"a": "in use", "b": "in use"}
