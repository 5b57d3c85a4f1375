"""A run on real images is explained; the gains of flags are planted."""

import dataclasses
import io
import json
import shutil
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from onsight.cli import main
from onsight.config import make_config
from onsight.data.augment import Augmentation
from onsight.errors import ConfigError, NonFiniteLoss, OutputError
from onsight.explainer import bench as benches
from onsight.explainer import explain_run
from onsight.explainer import explain_run as explaining
from onsight.explainer.bench import FlagChange, FlagTrial, changed_fields, flag_changes
from onsight.explainer.explain import explain
from onsight.explainer.explain_run import explain_data
from onsight.explainer.head_run import has_training_steps
from onsight.explainer.show_run import cause, explanation_facts, print_explanation, verdict
from onsight.explainer.step_record import record_step
from onsight.hardware.reproducible import reproducible
from onsight.models.file import load_model_file, save_model
from onsight.report.console import SilentReporter
from onsight.step.update import MovingAverage
from onsight.training.job import Job
from onsight.tune.trial import Trial
from onsight_explain.search import TrialFailed

SMALL = {"model": "lenet", "batch_size": 4, "image_size": "32", "threads": 1, "plan": "default"}


def plant_gains(patch, gains):
    """Plant the gain of each change, by its field and value."""

    def measure(trial, seconds):
        rate = 100.0
        for name, value in trial.config.model_dump().items():
            if value != getattr(trial.bench.config, name):
                rate *= gains.get((name, value), 0.5)
        return rate

    patch.setattr(FlagTrial, "measure", measure)


@pytest.fixture
def plant(monkeypatch):
    """`plant_gains`, until the test ends."""
    return partial(plant_gains, monkeypatch)


def explained(bars, try_changes=True, seconds=1.0, **fields):
    config = make_config(SMALL | fields)
    return explain_data(str(bars), config, seconds, try_changes, SilentReporter())


@pytest.fixture(scope="module")
def recorded(shared_bars):
    """A run whose step was recorded, without trying flags."""
    return explained(shared_bars, try_changes=False)


@pytest.fixture(scope="module")
def without_gain(shared_bars):
    """A run that no flag makes faster."""
    with pytest.MonkeyPatch.context() as patch:
        plant_gains(patch, {})
        return explained(shared_bars)


@pytest.fixture(scope="module")
def finished(shared_bars, train_once):
    """The folder of a finished run; do not modify it."""
    return train_once("run-to-explain", shared_bars, epochs=1, device="cpu", **SMALL).path


def test_the_phases_of_a_step_add_up_and_the_work_is_counted(recorded):
    before = recorded.before
    assert sum(before.phases.values()) == pytest.approx(before.seconds, rel=1e-3)
    assert before.images == 4 * before.steps
    for name in ("data", "augment", "forward", "backward", "optimizer"):
        assert before.phases[name] > 0
    # LeNet on one 32x32 channel, by hand: two convolutions, three linear layers; two operations
    # per multiplication; three times that for a step, but no gradient for the images.
    first = 2 * 28 * 28 * 6 * 25
    rest = 2 * (10 * 10 * 16 * 25 * 6 + 400 * 120 + 120 * 84 + 84 * 2)
    assert before.flops == 4 * (2 * first + 3 * rest)
    assert recorded.after is None


@pytest.mark.parametrize(
    ("planted", "phase"),
    [
        pytest.param("draw_numbers", "augment", marks=pytest.mark.soak),
        ("augment_images", "augment"),
        pytest.param("mix_batch", "augment", marks=pytest.mark.soak),
        (None, "optimizer"),
    ],
)
def test_slow_parts_are_found_in_their_phase(bars, monkeypatch, planted, phase):
    owner, name = (Augmentation, planted) if planted else (MovingAverage, "update")
    original, naps = getattr(owner, name), []

    def slow(*args, **kwargs):
        naps.append(time.sleep(0.02))
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)
    before = explained(bars, try_changes=False, ema=0.9).before
    assert before.phases[phase] >= 0.02 * before.steps
    assert max(before.phases, key=before.phases.get) == phase


def prepared(data, config):
    """The run as `explain` prepares it."""
    device, threads = explain_run.choose_device("cpu"), explain_run.choose_threads(1)
    job = Job(SilentReporter(), device, threads)
    return explain_run.plan_without_training(str(data), config, job)


def test_recording_does_not_change_the_training(bars):
    """The losses are those of a trial that is not recorded."""
    config = make_config(SMALL)
    losses = []
    for watched in (True, False):
        with reproducible(1):
            ready = prepared(bars, config.model_copy(update={"learning_rate": 0.01}))
            trial = Trial(ready.config, ready.data)
            if watched:
                record_step(trial, 4, 0.1)
            else:
                trial.timer(4)(8)
            losses.append(trial.losses[:8])
    assert losses[0] == losses[1]


def test_the_best_flags_are_applied_together_and_recorded_again(bars, plant):
    plant({("batch_size", 8): 1.5, ("precision", "bf16"): 2.0, ("threads", 2): 1.02})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onsight.explainer.bench._BATCH_SIZES", (8,))
        found = explained(bars)
    assert changed_fields(found.best.changes) == {"precision": "bf16", "batch_size": 8}
    assert found.best.low == pytest.approx(3.0)
    assert found.after.images == 8 * found.after.steps
    steps = found.before.phases | {"data": 0.0}  # which a busy machine makes wait for images
    found = dataclasses.replace(found, before=dataclasses.replace(found.before, phases=steps))
    assert cause(found) == "small-batch"
    words = verdict(found)
    assert words.startswith("Overhead bound: ")
    assert (
        "with --precision bf16 --batch-size 8 it is at least 3.0 times as fast, 3.0 to 3.0" in words
    )


def test_without_a_gain_nothing_is_applied(without_gain):
    assert (without_gain.best, without_gain.after) == (None, None)
    assert verdict(without_gain).endswith("other flags is 5% faster.")


def test_waiting_for_data_is_the_cause(without_gain):
    found = without_gain
    waits = found.before.phases | {"data": found.before.seconds}
    found = dataclasses.replace(found, before=dataclasses.replace(found.before, phases=waits))
    assert cause(found) == "loader"
    assert verdict(found).startswith("Data bound: 100% of the time is spent waiting for images")


def test_a_host_that_waits_for_a_busy_accelerator_is_compute_bound(recorded):
    found = recorded
    waits = dict.fromkeys(found.before.phases, 0.0) | {"other": found.before.seconds}
    busy = {"forward": 0.1, "backward": 0.2, "optimizer": 0.05, "data": 0.05}
    before = dataclasses.replace(found.before, phases=waits, device_phases=None)
    assert cause(dataclasses.replace(found, before=before)) == "other"
    before = dataclasses.replace(before, device_phases=busy)
    assert cause(dataclasses.replace(found, before=before)) == "compute"


def test_flags_are_really_timed_and_a_flag_that_fails_gives_its_reason(bars, monkeypatch):
    flags = [FlagChange("threads", 2), FlagChange("precision", "fp16")]
    monkeypatch.setattr(benches, "flag_changes", lambda *_: flags)
    monkeypatch.setattr(explain_run, "_WINDOW_SECONDS", 0.05)
    real = benches.Trial

    class Picky(real):
        def __init__(self, config, data):
            if config.precision == "fp16":
                raise RuntimeError("no fp16 here\nlong reporter")
            super().__init__(config, data)

    monkeypatch.setattr(benches, "Trial", Picky)
    two, bad = explained(bars, seconds=4.0).search.results
    assert two.ratio > 0
    assert (bad.problem, bad.ratio) == ("no fp16 here", 0.0)


@pytest.mark.parametrize("error", [RuntimeError, ConfigError, NonFiniteLoss])
def test_whatever_a_flag_fails_with_its_reason_is_one_line(monkeypatch, error):
    def fail(config, data):
        raise error("no fp16 here\nlong reporter")

    monkeypatch.setattr(benches, "Trial", fail)
    bench = SimpleNamespace(config_with=lambda flags: None, data=None)
    with pytest.raises(TrialFailed, match="^no fp16 here$"):
        FlagTrial(bench, ()).measure(0.1)


def test_which_flags_are_worth(bars):
    with reproducible(1):
        ready = prepared(bars, make_config(SMALL | {"learning_rate": 0.01, "accumulate": 2}))
        config, data = ready.config, ready.data
        flags = {one.label for one in flag_changes(config, data, data.new_network(config))}
    cores = explain_run.choose_threads(0).value
    several = {f"--threads {cores}"} if cores > 1 else set()
    assert flags == several | {
        "--precision bf16",
        "--memory-format contiguous",
        "--accumulate 1",
    }


def test_json_and_page_agree(bars, plant):
    plant({("precision", "bf16"): 2.0})
    found = explained(bars)
    told = json.loads(json.dumps(explanation_facts(found)))
    assert told["best_ratio"] == pytest.approx(2.0)
    assert told["best"]["changes"] == {"precision": "bf16"}
    assert sum(told["phases"].values()) == pytest.approx(told["before"]["seconds"], rel=1e-3)
    page = io.StringIO()
    print_explanation(found, Console(file=page, width=80))
    text = " ".join(page.getvalue().split())
    assert " ".join(verdict(found).split()) in text
    assert "Applied and recorded again, --precision bf16" in text


def test_a_run_folder_is_explained(finished, tmp_path, capfd, plant):
    plant({})
    shutil.copytree(finished, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(f'decode_on = "cpu"\n{config.read_text()}')  # of an older version
    page = str(tmp_path / "page.html")
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(tmp_path / "run"), "--seconds", "1", "--json", "--html", page])
    assert stop.value.code == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (told["model"], told["config"]["batch_size"]) == ("lenet", 4)
    text = " ".join((tmp_path / "page.html").read_text().split())
    assert "lenet on cpu" in text
    assert told["verdict"].split(":")[0] in text


@pytest.fixture
def blended(tmp_path):
    """A run of three networks, and a function that writes their rows of its results."""
    weights = {"head": 0.5, "compact": 0.2, "tuned": 0.3}
    for name in weights:
        (tmp_path / "members" / name).mkdir(parents=True)
        text = f"freeze = {str(name == 'head').lower()}"
        (tmp_path / "members" / name / "config.toml").write_text(text)
    numbers = dict.fromkeys(("loss", "seconds", "ms_per_image"), 1.0)
    accuracies = dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), 0.5)
    row = numbers | accuracies | {"model": "lenet", "images": 9, "parameters": 9}
    rows = [
        row | {"name": name, "weight": weight, "image_size": [8, 8]}
        for name, weight in weights.items()
    ]

    def write(**changes):
        rows[2].update(changes)
        (tmp_path / "results.json").write_text(json.dumps({"members": rows}))
        return tmp_path

    return write


def test_of_several_networks_the_one_that_counts_most_is_explained(blended):
    run = blended()
    found = explaining.find_config(run)
    assert found == run / "members" / "tuned" / "config.toml"
    (run / "results.json").unlink()
    assert explaining.find_config(run) == run / "config.toml"


@pytest.mark.parametrize("changes", [{"weight": "most"}, {"name": 7}, {"weight": None}])
def test_altered_results_are_refused_with_the_key(blended, changes):
    with pytest.raises(OutputError, match=r"results.json is damaged: members.2.\w+"):
        explaining.find_config(blended(**changes))


def test_only_networks_of_the_run_are_explained(blended, tmp_path):
    """Altered results that name a folder elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.toml").write_text("freeze = false")
    found = explaining.find_config(blended(name="../elsewhere"))
    assert found == tmp_path / "members" / "compact" / "config.toml"


def test_noise_is_named_instead_of_a_cause(without_gain):
    found = dataclasses.replace(without_gain, noise="a reason")
    assert cause(found) == "noise"
    assert verdict(found).startswith("Too noisy to tell: a reason; measure again")


def test_waiting_that_noise_cannot_explain_is_named(without_gain):
    found = dataclasses.replace(without_gain, noise="a reason", noise_ratio=2.0)
    seconds = found.before.seconds

    def waiting(share):
        phases = dict.fromkeys(found.before.phases, 0.0)
        phases |= {"data": share * seconds, "forward": (1 - share) * seconds}
        return dataclasses.replace(found, before=dataclasses.replace(found.before, phases=phases))

    assert cause(waiting(0.64)) == "noise"
    assert cause(waiting(0.7)) == "loader"
    assert verdict(waiting(0.7)) == (
        "Data bound: 70.0% of the time is spent waiting for images; too noisy to tell what helps: "
        "a reason; measure again when this machine is idle."
    )


def test_an_unfinished_run_is_refused_with_advice(tmp_path):
    with pytest.raises(OutputError, match="Pass the dataset instead"):
        explaining.data_of_run(tmp_path, "auto")


def test_a_run_on_images_elsewhere_is_explained_only_if_the_user_names_them(trained, tmp_path):
    file = load_model_file(trained.path)
    for data in ("https://localhost/pets", "cifar10"):
        file.provenance["data"] = data
        save_model(tmp_path / "model.safetensors", file)
        with pytest.raises(OutputError, match="only a file names is not contacted.*--config"):
            explaining.data_of_run(tmp_path, "auto")


def test_the_number_of_threads_is_restored(bars):
    former = torch.get_num_threads()
    explained(bars, try_changes=False, threads=former + 1)
    assert torch.get_num_threads() == former


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["demo", "--", "x"], "Unused Tokens: ['x']"),
        (["absent.py"], "does not exist"),
        (["absent.py", "--batch-size", "4"], "after --"),
        (["absent.py", "--compare", "cpu"], "after --"),
        (["demo", "--html", "page.txt"], "name a file that ends in .html"),
        (["absent.py", "--ranks", "2"], "--ranks is not supported for scripts"),
        (["absent.py", "--ranks", "2", "--simulate-gpu"], "--ranks is not supported for scripts"),
        (["pets.ipynb"], "make a script of it (`jupyter nbconvert --to script pets.ipynb`)"),
        (["demo", "--write", "mended.py"], "demo is not a Python file"),
        (["demo", "--compare", "cpu", "--save-plot", "plot.txt"], ".png"),
    ],
)
def test_wrong_arguments_are_explained(capfd, words, expected):
    with pytest.raises(SystemExit) as stop:
        main(["explain", *words])
    assert stop.value.code == 2
    assert expected in capfd.readouterr().err


@pytest.fixture
def run_of_head(tmp_path, trained):
    """A function that writes a finished run whose model is a head alone."""
    run = tmp_path / "runs" / "my first"

    def write(others=(), **plan):
        run.mkdir(parents=True)
        shutil.copy(trained.path / "model.safetensors", run / "model.safetensors")
        head = run / "members" / "head" if others else run
        for name in ("head", *others) if others else ():
            folder = run / "members" / name
            folder.mkdir(parents=True)
            frozen = str(name == "head").lower()
            (folder / "config.toml").write_text(f'model = "lenet"\nfreeze = {frozen}')
        chosen = {"threads": {"value": 1, "reason": "1 thread is faster", "figure": 2.0}} | plan
        (run / "config.toml").write_text(
            'folds = "5"' if others else 'model = "lenet"\nfreeze = true'
        )
        (run / "plan.json").write_text("{}")
        (head / "plan.json").write_text(json.dumps(chosen))
        results = {"used": 280, "model": "lite0", "images_per_second": 34.04, "data": "photos/"}
        results |= {"phases": {"start": 5.98, "folds": 16.39, "heat maps": 0.01}, "device": "cpu"}
        if others:
            shown = dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), 0.5)
            row = {"model": "lite0", "images": 9, "loss": 1.0, "image_size": [8, 8], **shown}
            row |= {"parameters": 9, "ms_per_image": 20.0}
            rows = [row | {"name": "head", "weight": 1.0, "seconds": 35.6}]
            rows += [row | {"name": name, "weight": 0.0, "seconds": 414.6} for name in others]
            results |= {"members": rows, "images_per_second": 0.0}
        (run / "results.json").write_text(json.dumps(results))
        return run

    return write


def shown_head(run, **settings):
    page = io.StringIO()
    found = explain(run, **settings)
    assert json.loads(json.dumps(found.facts()))["best_ratio"] == 1
    found.show(Console(file=page, width=1000))
    return [line.rstrip() for line in page.getvalue().splitlines()]


def test_a_run_that_only_fitted_a_head_says_what_it_did(run_of_head):
    assert shown_head(run_of_head()) == [
        "73.2% of the run's 22.4 s went into folds (--folds 1 leaves them out, and on a frozen "
        "network (--freeze) they are short); the rest: start 6.0 s.",
        "",
        "This run only fitted a head: it computed features of 280 images with lite0, at 34 "
        "images/s, and has no training steps to explain.",
        "",
        "threads: 1 (1 thread is faster)",
        "`onsight explain photos/ --model sprint` explains the training of a network.",
    ]


def test_of_a_head_alone_the_network_without_a_weight_is_named(run_of_head):
    run = run_of_head(others=["compact"])
    lines = shown_head(run)
    assert lines[2] == (
        "The model of this run is a head alone: it computed features of 280 images with lite0, at "
        "50 images/s, and has no training steps to explain."
    )
    assert lines[-1] == (
        "compact was trained for 6 min 55 s, but is not in the model: `onsight explain "
        f"'{run}' --config '{run}/members/compact/config.toml'` explains its training."
    )


def test_a_frozen_network_that_was_trained_in_steps_is_explained(run_of_head):
    run = run_of_head(epochs={"value": 3, "reason": "set by you", "figure": None})
    assert has_training_steps(run)


def test_a_head_has_no_timeline(run_of_head, tmp_path):
    with pytest.raises(ConfigError, match="records training steps. This run only fitted a head"):
        explain(run_of_head(), trace_file=tmp_path / "trace.json")


def test_a_run_that_does_not_say_what_is_in_its_model_is_not_explained(run_of_head):
    run = run_of_head(others=["compact"])
    (run / "results.json").unlink()
    with pytest.raises(OutputError, match="not a finished run.*members/NAME/config.toml"):
        explain(run)


def test_data_of_which_only_a_head_would_be_fitted_is_refused(bars, backbone):
    with pytest.raises(ConfigError, match="only a head is fitted .* --no-freeze explains"):
        explained(bars, model="test_resnet", freeze=True, weights=str(backbone.path))


def test_settings_are_said_to_be_yours_only_if_you_gave_them(finished, shared_bars, capsys, plant):
    plant({})
    explain(finished, seconds=0.5, threads=1, folds="2")
    said = capsys.readouterr().err
    assert f"model: lenet (as in {finished})" in said
    assert f"device: cpu (as in {finished})" in said
    assert "folds: 2 (set by you)" in said
    explain(shared_bars, seconds=0.5, what_ifs=False, **(SMALL | {"model": "auto"}))
    said = capsys.readouterr().err
    assert "model: sprint (a small network, in place of those that --model auto trains)" in said
    assert "set by you" not in said
