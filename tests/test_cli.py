"""What people type, what they read, and how it ends."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onsight.cli import main
from onsight.config import Config, make_config
from onsight.config_files import (
    config_layers,
    read_about,
    read_config_file,
    read_recipe,
    recipe_names,
    save_config,
)
from onsight.errors import ConfigError
from onsight.explainer import explain, explain_run
from onsight_lint.cli import main as lint_main
from onsight_lint.cli import make_parser

PLANTED = Path(__file__).parents[1] / "packages/onsight-lint/tests/planted/tensor_not_moved.py"
SLIGHT = ["--epochs", "1", "--batch-size", "16"]


def run_command(capsys, *words):
    """(exit code, stdout, stderr) of a command line."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def refused(capsys, *words):
    """The message of a command that must end with exit code 2, without a traceback."""
    code, out, err = run_command(capsys, *words)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    message = err.partition("error: ")[2]
    assert message
    return message


def test_help_needs_no_torch_and_no_other_heavy_library():
    script = (
        "import sys, onsight\n"
        "from onsight.cli import main\n"
        "for words in (['--help'], ['train', '--help'], ['--version'], []):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "    names = {'torch', 'timm', 'torchvision', 'matplotlib', 'numpy', 'PIL'}\n"
        "    heavy = names & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_field_has_a_flag_and_every_flag_its_sentence(capsys):
    _, out, _ = run_command(capsys, "train", "--help-all")
    for name, field in Config.model_fields.items():
        assert f"--{name.replace('_', '-')}" in out
        assert field.description
        assert field.description.endswith(".")


def test_the_commands_and_flags_are_a_contract(capsys):
    _, out, _ = run_command(capsys, "--help")
    commands = set(re.findall(r"^│ ([a-z]+) ", out, re.MULTILINE))
    assert commands >= {"train", "eval", "predict", "models", "recipes", "report"}
    _, out, _ = run_command(capsys, "train", "--help")
    for flag in ("out", "recipe", "model", "epochs", "device", "seed", "config", "resume", "json"):
        assert f"--{flag}" in out


def flags_in(help_text):
    return set(re.findall(r"^│ +(?:\*? *[A-Z]+ )?(--[a-z-]+)", help_text, re.MULTILINE))


USUAL = {"--model", "--epochs", "--effort", "--budget", "--seed", "--device"}


@pytest.mark.parametrize("command", ["train", "sweep", "verify-resume", "explain"])
def test_help_shows_the_usual_options_and_help_all_every_one(capsys, command):
    usual, every = (run_command(capsys, command, word)[1] for word in ("--help", "--help-all"))
    settings = {f"--{name.replace('_', '-')}" for name in Config.model_fields}
    assert settings & flags_in(usual) == USUAL
    assert settings < flags_in(every)
    more = {flag for flag in flags_in(every) - flags_in(usual) if not flag.startswith("--no-")}
    assert more - settings <= {"--cluster"}
    assert f"onsight {command} --help-all" in usual
    assert '""' not in every  # a default that is empty says nothing
    assert "DATA" in usual or "SUBJECT" in usual


def test_the_help_of_train_fits_on_a_screen(capsys):
    own = {"--out", "--recipe", "--config", "--resume", "--json", "--verbose", "--data"}
    assert flags_in(run_command(capsys, "train", "--help")[1]) == own | USUAL


def test_a_commands_own_help_is_its_whole_description(capsys):
    _, out, _ = run_command(capsys, "serve", "--help")
    assert "Only requests from this machine are accepted unless --host is given." in " ".join(
        out.split()
    )
    assert "Parameters ---" not in " ".join(out.split())


def test_the_short_help_is_each_commands_own_first_sentence():
    from onsight import cli

    for name, text in cli._COMMANDS.items():
        if name in cli._PACKAGES:
            assert make_parser().description.partition("\n")[0] == text
            continue
        module, called = cli._find_command(name)
        function = getattr(import_module(module), called)
        first = " ".join(function.__doc__.partition("\n\n")[0].split())
        assert first == text


@pytest.mark.parametrize(
    "words",
    [["lint", "--help"], ["--help", "lint"], ["lint", "--fxi"], ["lint", PLANTED, "--format=json"]],
)
def test_lint_is_passed_on_as_it_was_typed(capsys, words):
    """Oracle: onsight-lint with the same words."""
    passed_on = run_command(capsys, *words)
    with pytest.raises(SystemExit) as stop:
        sys.exit(lint_main([str(word) for word in words if word != "lint"]))
    assert passed_on == (stop.value.code, *capsys.readouterr())


def test_lint_needs_neither_torch_nor_our_own_parser():
    script = (
        "import sys\n"
        "from onsight.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'torch', 'cyclopts', 'pydantic'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "lint", PLANTED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "1 mistake in 1 of 1 file\n"


def test_lint_says_what_to_install(capsys, monkeypatch):
    class Absent:
        def find_spec(self, name, path, target=None):
            if name == "onsight_lint":
                raise ModuleNotFoundError(name, name=name)

    for name in [name for name in sys.modules if name.startswith("onsight_lint")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    assert refused(capsys, "lint", ".").endswith("pip install onsight-lint\n")
    assert "lint" in run_command(capsys, "--help")[1]


@pytest.mark.parametrize(
    ("subject", "package"), [("train.py", "onsight-explain"), ("demo", "onsight")]
)
def test_explain_where_only_exported_models_run(capsys, monkeypatch, subject, package):
    """onsight-run has those modules of onsight_explain that need no torch."""
    for name in ("explain", "cli"):
        monkeypatch.setitem(sys.modules, f"onsight_explain.{name}", None)
    monkeypatch.delitem(sys.modules, "onsight.explainer.explain", raising=False)
    monkeypatch.delattr("onsight.explainer.explain", raising=False)
    assert refused(capsys, "explain", subject).endswith(f"pip install {package}\n")


def test_train_prints_one_json_object_on_stdout(capsys, bars, tmp_path, blank_report):
    code, out, err = run_command(
        capsys, "train", bars, "--out", tmp_path / "run", "--json", *SLIGHT
    )
    assert code == 0
    facts = json.loads(out.splitlines()[-1])
    assert facts.keys() >= {
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "images",
        "seconds",
        "images_per_second",
        "device",
        "model",
        "report",
        "used",
        "problems",
    }
    assert Path(facts["report"]).exists()
    assert Path(facts["model"]).exists()
    found, device = err.splitlines()[:2]
    assert found == "data: class folders, 2 classes, 120 files"
    assert device.startswith("device: cpu (")


def test_train_eval_predict_report_one_after_the_other(capsys, bars, tmp_path):
    run = tmp_path / "run"
    code, out, err = run_command(capsys, "train", bars, "--out", run, *SLIGHT)
    assert code == 0
    assert len(err.splitlines()) + len(out.splitlines()) <= 15
    assert re.search(r"accuracy [\d.]+% \(95% CI [\d.]+% to [\d.]+%, n = \d+ test images\)", out)
    code, out, _ = run_command(capsys, "eval", run, bars, "--json")
    assert code == 0
    assert json.loads(out)["images"] > 0
    code, out, _ = run_command(capsys, "eval", run, bars, "--tta", "flip")
    assert code == 0
    assert re.search(r"over several views of each image \(flip\): accuracy [\d.]+% \(95% CI", out)
    code, out, _ = run_command(capsys, "predict", run, bars / "across", bars / "down" / "000.png")
    assert code == 0
    assert len(out.splitlines()) == 61
    (run / "report.html").unlink()
    code, out, _ = run_command(capsys, "report", run)
    assert code == 0
    assert (run / "report.html").exists()


def test_recipes_are_listed_with_what_they_reproduce(capsys):
    code, out, _ = run_command(capsys, "recipes")
    assert code == 0
    for name in recipe_names():
        assert f"\n{name}\n" in f"\n{out}"
        assert f"onsight train --recipe {name}\n" in out
        for fact in read_about(name).values():
            assert fact in out


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_on_other_data(capsys, bars, tmp_path, blank_report, name):
    run = tmp_path / "run"
    words = ["--recipe", name, "--data", bars, "--out", run, "--ranks", "1", "--threads", "1"]
    code, _, err = run_command(capsys, "train", *words, *SLIGHT)
    assert code == 0, err
    config = read_config_file(run / "config.toml")
    fields = read_recipe(name) | {"epochs": 1, "batch_size": 16, "ranks": 1}
    assert {field: config[field] for field in fields} == fields


def test_a_recipe_brings_its_data_and_data_may_stand_first(
    capsys, bars, tmp_path, monkeypatch, blank_report
):
    monkeypatch.chdir(tmp_path)
    common = ["--recipe", "data-parallel", "--ranks", "1"]
    code, _, err = run_command(capsys, "train", *common)
    assert code == 0
    assert "random vectors with train/test" in err
    assert (tmp_path / "runs" / "random-vectors" / "report.html").exists()
    code, _, err = run_command(capsys, "train", bars, *common)
    assert code == 0
    assert "120 files" in err


# ------------------------------------------------------------------ bad input


def test_no_data_says_what_to_type(capsys):
    message = refused(capsys, "train")
    for command in ("onsight train FOLDER", "onsight train demo", "onsight recipes"):
        assert command in message


def test_data_twice(capsys, bars):
    assert str(bars) in refused(capsys, "train", bars, "--data", bars)


def test_an_unknown_recipe_without_data(capsys):
    assert "no recipe 'cifar10'. Did you mean" in refused(capsys, "train", "--recipe", "cifar10")


@pytest.mark.parametrize(
    ("name", "files"),
    [("dogs-vs-cats", "Cat and Dog"), ("cifar10-lenet", "cifar-10-python.tar.gz")],
)
def test_absent_data_of_a_recipe(capsys, tmp_path, monkeypatch, name, files):
    def no_network(self):
        raise OSError("no route")

    monkeypatch.setattr("torchvision.datasets.CIFAR10.download", no_network)
    monkeypatch.setenv("ONSIGHT_DATA", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "train", "--recipe", name)
    assert files in message
    assert str(tmp_path / "sets") in message
    assert message.rstrip().endswith(read_about(name)["stand_in"])
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    plain = refused(capsys, "train", read_about(name)["data"])
    assert files in plain
    assert "--recipe" not in plain


def test_missing_path(capsys, tmp_path):
    (tmp_path / "images").mkdir()
    code, _, err = run_command(capsys, "train", tmp_path / "picturs")
    assert code == 2
    assert err.startswith(f"error: {tmp_path / 'picturs'} does not exist")


def test_empty_folder(capsys, tmp_path):
    assert refused(capsys, "train", tmp_path, "--out", tmp_path / "run")


def test_one_class_only(capsys, bars, tmp_path):
    shutil.rmtree(bars / "down")
    code, _, err = run_command(capsys, "train", bars, "--out", tmp_path / "run")
    assert code == 2
    assert err.startswith("error: only one class ('across')")  # before a model is chosen


def test_a_folder_without_classes(capsys, bars):
    assert "--label-from" in refused(capsys, "train", bars / "down")


def test_classes_that_a_model_does_not_have(capsys, trained, bars, tmp_path):
    for name in "abcdefghij":
        (tmp_path / "data" / name).mkdir(parents=True)
        shutil.copy(bars / "down" / "000.png", tmp_path / "data" / name)
    message = refused(capsys, "eval", trained.path, tmp_path / "data")
    assert "(a, b, c, d, e, f, g, h and 2 more) is one of the model's (across and down)" in message


def test_all_images_broken(capsys, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "x.png").write_bytes(b"no image")
        (tmp_path / "data" / name / "y.png").write_bytes(b"")
    message = refused(capsys, "train", tmp_path / "data", "--out", tmp_path / "run")
    assert "none of the 4 images" in message
    assert "empty file" in message


def test_strict_names_the_first_problem(capsys, bars, tmp_path):
    (bars / "down" / "empty.png").write_bytes(b"")
    message = refused(capsys, "train", bars, "--out", tmp_path / "run", "--strict")
    assert "down/empty.png: empty file" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "compcat"], "Did you mean compact"),
        (["--model", "resnet51"], "resnet50"),
        (["--recipe", "fastest"], "no recipe 'fastest'"),
        (["--device", "cuda:7"], "available: cpu"),
        (["--device", "gpu"], "available: cpu"),
        (["--optimizer", "sdg"], "Did you mean sgd"),
        (["--epoch", "3"], "Did you mean --epochs"),
        (["--lr", "0.1"], "Did you mean --learning-rate"),
        (["--budget", "1"], "--budget 1: write a positive number and a unit, such as 90s"),
        (["--epochs", "0"], "--epochs 0: write auto, or a number from 1 to 1,000,000"),
        (["--epochs", "many"], "--epochs many"),
        (["--image-size", "big"], "--image-size big"),
        (["--image-size", "0"], "--image-size 0"),
        (["--warmup-epochs", "inf"], "--warmup-epochs"),
        (["--optimizer", "fusedadam"], "cannot be used here"),
        (["--loss", "hinge"], "hinge"),
        (["--precision", "fp16"], "needs a GPU"),
        (["--config", "no-such.toml"], "the config no-such.toml cannot be read"),
    ],
)
def test_wrong_words_are_explained(capsys, bars, tmp_path, words, expected):
    assert expected in refused(capsys, "train", bars, "--out", tmp_path / "run", *words)


def test_config_file_with_an_unknown_key(capsys, bars, tmp_path):
    (tmp_path / "my.toml").write_text("epoch = 3\n")
    message = refused(capsys, "train", bars, "--config", tmp_path / "my.toml")
    assert "unknown field 'epoch'. Did you mean epochs" in message
    (tmp_path / "my.toml").write_text("epochs = = 3\n")
    assert "is not a TOML file" in refused(capsys, "train", bars, "--config", tmp_path / "my.toml")


@pytest.mark.parametrize(
    "command", [["train", "demo", "--config"], ["train", "demo", "--resume", "--out"], ["explain"]]
)
def test_a_removed_setting_that_was_used_is_refused(capsys, tmp_path, command):
    (tmp_path / "config.toml").write_text('decode_on = "gpu"\n')
    (tmp_path / "plan.json").write_text("{}")
    subject = tmp_path / "config.toml" if "--config" in command else tmp_path
    message = refused(capsys, *command, subject)
    assert (
        message == "'decode_on' was removed: JPEGs are always decoded on the CPU, so remove it.\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "demo", "--decode-on", "gpu"], "--decode-on was removed: JPEGs are always"),
        (["train", "demo", "--decode-on=cpu"], "--decode-on was removed: JPEGs are always"),
        (["explain", "demo", "--decode_on", "gpu"], "--decode-on was removed: JPEGs are always"),
        (["sweep", "demo", "--try", "decode_on=cpu,gpu"], "'decode_on' was removed: JPEGs are"),
        (["export", "run", "--to", "openvino"], "export to onnx, which OpenVINO reads"),
        (
            ["export", "run", "--to", "executorch"],
            "export to onnx, which ONNX Runtime runs on phones",
        ),
        (["card", "run", "--push", "me/pets"], "--push was removed: write the folder with --to"),
    ],
)
def test_a_removed_option_names_what_to_do_instead(capsys, words, expected):
    assert expected in refused(capsys, *words)


def test_resuming_needs_data_too(capsys, tmp_path):
    message = refused(capsys, "train", "--resume", "--out", tmp_path)
    assert f"repeat the command with --out {tmp_path} --resume, and with its DATA" in message


@pytest.mark.parametrize("command", [["train", "demo", "--resume", "--out"], ["explain"]])
def test_no_code_runs_because_a_strangers_run_names_it(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evilnet.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text('model = "evilnet:Net"\n')
    (run / "plan.json").write_text("{}")
    assert "code named by a file is not run" in refused(capsys, *command, run)
    assert not (tmp_path / "ran").exists()


def test_no_code_runs_because_a_config_file_names_it(capsys, bars, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evilnet.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    (tmp_path / "my.toml").write_text('model = "evilnet:Net"\n')
    words = [bars, "--config", tmp_path / "my.toml", "--out", tmp_path / "run"]
    message = refused(capsys, "train", *words)
    assert "add --model evilnet:Net" in message
    assert not (tmp_path / "ran").exists()
    refused(capsys, "train", *words, "--model", "evilnet:Net")  # has no Net, but was imported
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["train", "sweep", "verify-resume", "explain"])
@pytest.mark.parametrize(
    ("name", "flag"), [("cache_folder", "--cache-folder"), ("checkpoints", "--checkpoints")]
)
def test_a_config_file_does_not_say_where_to_write(capsys, bars, tmp_path, command, name, flag):
    place = tmp_path / "theirs"
    (tmp_path / "my.toml").write_text(f'{name} = "{place}"\n')
    words = [bars, "--config", tmp_path / "my.toml"]
    words += ["--try", "epochs=1,2", "--out", tmp_path / "out"] if command == "sweep" else []
    assert f"add {flag} {place}" in refused(capsys, command, *words)
    assert not place.exists()
    assert config_layers(None, tmp_path / "my.toml", {name: str(place)})[2] == {name: str(place)}


def test_where_a_strangers_run_wrote_is_not_where_its_explanation_writes(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text('model = "lenet"\ncache_folder = "theirs"\nepochs = 3\n')
    (tmp_path / "plan.json").write_text("{}")
    monkeypatch.setattr(explain_run, "data_of_run", lambda run, data_format: "demo")
    _, config, _ = explain._read_subject(str(tmp_path), {}, None, None)
    assert (config.cache_folder, config.epochs) == ("", 3)


def test_output_folder_in_use(capsys, bars, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    message = refused(capsys, "train", bars, "--out", tmp_path / "run")
    assert "already holds files" in message
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_no_folder_inside_the_data_is_written(capsys, bars, tmp_path, monkeypatch):
    before = sorted(bars.rglob("*"))
    assert "inside the data" in refused(capsys, "train", bars, "--out", bars / "run")
    assert "inside the data" in refused(capsys, "train", bars.as_uri(), "--out", bars / "run")
    for flag in ("--cache-folder", "--checkpoints"):
        message = refused(capsys, "train", bars, flag, bars / "copies", "--out", tmp_path / "run")
        assert f"inside the data; choose another folder with {flag}" in message
    monkeypatch.chdir(bars)
    assert "inside the data" in refused(capsys, "train", ".")
    assert sorted(bars.rglob("*")) == before


@pytest.mark.parametrize(
    "words", [["--batch-size", "1"], ["--batch-size", "4", "--accumulate", "9"]]
)
def test_batches_too_small_for_batch_norm(capsys, bars, tmp_path, words):
    message = refused(capsys, "train", bars, "--out", tmp_path / "run", *words)
    assert "raise --batch-size" in message


def test_manifest_with_a_missing_file_and_a_double_row(capsys, bars, tmp_path, blank_report):
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in bars.rglob("*.png")]
    rows += ["bars/across/missing.png,across", rows[0]]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    run = tmp_path / "run"
    code, out, _ = run_command(
        capsys, "train", tmp_path / "list.csv", "--out", run, "--json", *SLIGHT
    )
    assert code == 0
    facts = json.loads(out)
    assert (facts["used"], facts["problems"]) == (120, 2)
    problems = (run / "problems.csv").read_text()
    assert "missing.png" in problems
    assert "twice" in problems


@pytest.mark.parametrize("link", ["environment.json", "gallery"])
def test_no_link_in_a_run_folder_is_followed(capsys, trained, tmp_path, link):
    run = shutil.copytree(trained.path, tmp_path / "run")
    (run / link).rename(tmp_path / "elsewhere")
    (run / link).symlink_to(tmp_path / "elsewhere")
    page = tmp_path / "compare.html"
    for words in (["report"], ["card"], ["compare", trained.path, "--out", page]):
        code, out, err = run_command(capsys, *words, run)
        assert (code, out) == (2, "")
        assert f"{run / link} is a link" in err
    assert not page.exists()


def test_model_files_that_are_none(capsys, bars, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.toml").write_text("")
    hint = "does not exist. Did you mean first?"
    for command in ("predict", "serve", "card", "report"):
        assert hint in refused(capsys, command, tmp_path / "frist")
    assert "Did you mean first?" in refused(capsys, "compare", tmp_path / "frist", bars)
    assert "does not exist" in refused(capsys, "predict", tmp_path / "frist.onnx")
    stopped = refused(capsys, "predict", tmp_path / "first", bars)
    assert "not the folder of a finished run; to continue, repeat the command with" in stopped
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    assert "damaged" in refused(capsys, "predict", tmp_path / "x.safetensors", bars)
    assert "not the folder of a finished run" in refused(capsys, "eval", bars, bars)


def test_predict_on_nothing(capsys, trained, bars, tmp_path):
    run = trained.path
    assert "does not exist" in refused(capsys, "predict", run, tmp_path / "nowhere.jpg")
    assert "an input is empty" in refused(capsys, "predict", run, "")
    (tmp_path / "empty").mkdir()
    assert "no input images found" in refused(capsys, "predict", run, tmp_path / "empty")
    (tmp_path / "n.sh").touch()
    assert "Did you mean" not in refused(capsys, "predict", run, tmp_path / "nosuch")
    _, _, err = run_command(capsys, "predict", run, bars, "--csv", tmp_path / "rows.csv")
    assert f"rows: {tmp_path / 'rows.csv'}" in err


# --------------------------------------------------------------------- config


def test_later_layers_win():
    config = make_config({"epochs": 3, "seed": 1}, {"epochs": 4}, {})
    assert (config.epochs, config.seed, config.batch_size) == (4, 1, Config().batch_size)


def test_config_survives_its_file(tmp_path):
    config = make_config({"epochs": 3, "background": "#102030", "image_size": "20x30"})
    save_config(config, tmp_path / "config.toml")
    assert make_config(read_config_file(tmp_path / "config.toml")) == config
    assert config.size == (20, 30)
    assert config.background_rgb == (16, 32, 48)


def test_a_file_of_an_older_version_may_name_a_removed_field_that_was_not_used(tmp_path):
    save_config(make_config({"epochs": 3}), tmp_path / "config.toml")
    text = (tmp_path / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(f'decode_on = "cpu"\n{text}')
    assert make_config(read_config_file(tmp_path / "config.toml")) == make_config({"epochs": 3})


def test_a_size_may_be_a_number():
    assert make_config({"image_size": 64, "channels": 3}).size == (64, 64)


def test_python_hears_the_same_words():
    with pytest.raises(ConfigError, match="unknown field 'epoch'. Did you mean epochs"):
        make_config({"epoch": 3})
    with pytest.raises(ConfigError, match="'decode_on' was removed: .* remove it"):
        make_config({"decode_on": "gpu"})


def test_names_exported_are_sorted_and_there():
    import onsight

    assert sorted(onsight.__all__) == onsight.__all__
    assert all(getattr(onsight, name).__doc__ for name in onsight.__all__)
    assert hasattr(onsight, "errors")  # a module that was imported is not a public name
    assert [name for name in dir(onsight) if not name.startswith("__")] == onsight.__all__
    with pytest.raises(AttributeError):
        _ = onsight.nonsense


def test_images_of_a_demo_are_inside_the_package():
    from importlib import resources

    folder = resources.files("onsight") / "demo"
    assert (folder / "fashion-mnist-sample.zip").is_file()
    assert "MIT License" in (folder / "LICENSE-fashion-mnist.txt").read_text(encoding="utf-8")


def test_large_folder_prints_progress_now_and_then(monkeypatch, capsys):
    from onsight.report import console

    monkeypatch.setattr(console, "_LINE_SECONDS", 0.01)
    reporter = console.Reporter()
    with reporter.bar("decode", 100) as bar:
        for _ in range(10):
            time.sleep(0.005)
            bar.advance(10, lambda: {"loss": 0.5})
    err = capsys.readouterr().err
    assert "decode:" in err
    assert "/100" in err
    assert "loss 0.500" in err


def test_no_number_of_pixels_is_out_of_place():
    """The demo's images are those of the data set, as grey PNGs of 28x28."""
    import io
    import zipfile
    from importlib import resources

    path = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    with zipfile.ZipFile(str(path)) as archive:
        names = archive.namelist()
        assert len(names) == 7000
        image = np.asarray(Image.open(io.BytesIO(archive.read(names[0]))))
    assert image.shape == (28, 28)


def test_a_name_in_brackets_is_printed_as_it_is(capsys, bars, tmp_path, blank_report):
    out = tmp_path / "o[bold]b[" / ":smile:" / "x]"
    code, said, _ = run_command(capsys, "train", bars, "--out", out, "--model", "compact", *SLIGHT)
    assert code == 0
    assert f"report: {out}" in said
    *_, predict, serve, export = said.splitlines()
    assert shlex.split(predict) == ["next:", "onsight", "predict", str(out), "IMAGES"]
    assert shlex.split(serve) == ["onsight", "serve", str(out)]
    assert shlex.split(export) == ["onsight", "export", str(out)]


def test_an_error_cannot_steer_the_terminal(capsys, tmp_path):
    assert "no\\x1b[2Jsuch" in refused(capsys, "train", tmp_path / "no\x1b[2Jsuch")


def in_process(*words, stdout=subprocess.PIPE, **environment):
    command = [sys.executable, "-m", "onsight", *map(str, words)]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True
    )


LONG = 300 * "x"


def test_a_full_disk_behind_stdout_is_one_clear_message():
    with open("/dev/full", "w") as full:
        done = in_process("recipes", stdout=full)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no space left" in done.stderr


def test_a_terminal_that_knows_only_ascii_gets_escapes(tmp_path):
    (tmp_path / "käse").mkdir()
    done = in_process("report", tmp_path / "käse", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "k\\xe4se is not a run folder" in done.stderr


@pytest.mark.parametrize("command", ["config", "model"])
def test_a_fifo_is_not_waited_for(capsys, tmp_path, bars, command):
    os.mkfifo(tmp_path / "pipe")
    words = {
        "config": ["train", bars, "--config", tmp_path / "pipe"],
        "model": ["predict", tmp_path / "pipe", bars],
    }
    assert "not a regular file" in refused(capsys, *words[command])


@pytest.mark.parametrize(
    "text", ["a = " + 10_000 * "[", "a = " + 6000 * "9", "a = \xff", 'cache_folder = "a\\u0000b"']
)
def test_a_config_that_overwhelms_the_parser(capsys, tmp_path, bars, text):
    (tmp_path / "config.toml").write_bytes(text.encode("latin-1"))
    said = refused(capsys, "train", bars, "--config", tmp_path / "config.toml")
    assert "config.toml is not a TOML file" in said or "config.toml is not UTF-8 text" in said


@pytest.mark.parametrize(
    "words",
    [
        ["train", LONG],
        ["train", LONG, "--label-from", "x"],
        ["train", LONG, "--crop-boxes"],
        ["check", LONG],
        ["predict", LONG, "x.png"],
        ["eval", LONG, "demo"],
        ["report", LONG],
        ["card", LONG],
        ["compare", LONG, "."],
        ["export", LONG, "--to", "onnx"],
        ["explain", LONG],
        ["sweep", "demo", "--try", "seed=1,2", "--out", LONG],
    ],
)
def test_a_name_that_is_too_long(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.png").touch()
    assert "File name too long" in refused(capsys, *words)


def test_a_home_that_does_not_exist(capsys, bars, monkeypatch):
    assert "~nosuchuser/x" in refused(capsys, "train", "~nosuchuser/x")
    assert "without ~" in refused(capsys, "train", bars, "--out", "~nosuchuser/run")
    monkeypatch.setenv("ONSIGHT_CACHE", "~nosuchuser/cache")
    assert "ONSIGHT_CACHE" in refused(capsys, "train", bars)


@pytest.mark.parametrize("words", [["--out", "x" * 300], ["--out", "loop/run"]])
def test_a_run_folder_that_cannot_be_made(capsys, bars, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    code, _, err = run_command(capsys, "train", bars, *words)
    assert code in (1, 2)
    assert "Traceback" not in err
    assert "error: " in err


@pytest.mark.parametrize(
    "words",
    [["--epochs", "1" + 400 * "0"], ["--threads", "1" + 30 * "0"], ["--seed", str(2**64)]],
)
def test_numbers_beyond_reason(capsys, bars, words):
    assert words[0] in refused(capsys, "train", bars, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "model", "data"),
        ("predict", "model", "image.png"),
        ("embed", "model", "image.png", "--out", "features.npz"),
        ("similar", "model", "image.png"),
        ("export", "model"),
    ],
    ids=lambda words: words[0],
)
def test_commands_choose_how_threads_wait_before_they_load_a_model(monkeypatch, words):
    class Chosen(BaseException):
        pass

    def choose():
        raise Chosen

    monkeypatch.setattr("onsight.cli.choose_spinning", choose)
    with pytest.raises(Chosen):
        main([*words])
