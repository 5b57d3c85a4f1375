"""Model cards: what the Hub's own reader finds in them, and that their figures are the run's."""

import json
import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from onsight import cli
from onsight.errors import OutputError
from onsight.limits import FEW_IMAGES
from onsight.models.file import load_model_file, save_model
from onsight.report.card import card_text, write_card
from onsight.report.card_facts import limitations, read_card_subject, training_facts


def command(*tokens):
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, tokens)])
    return ended.value.code


@pytest.fixture
def run(trained, tmp_path):
    """A run's folder of a test's own, without what a card does not need."""
    left_out = shutil.ignore_patterns("checkpoints", "gallery", "tensorboard", "report.html")
    return shutil.copytree(trained.path, tmp_path / "pets", ignore=left_out)


def test_the_hub_reads_the_accuracy(run, capsys):
    assert command("card", run, "--license", "cc-by-4.0") == 0
    path = run / "card.md"
    assert capsys.readouterr().out == f"{path}\n"
    card = ModelCard.load(path)
    results = json.loads((run / "results.json").read_text())
    assert card.data.license == "cc-by-4.0"
    assert card.data.library_name == "onsight"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.model_name == "pets"
    (found,) = card.data.eval_results
    assert found.task_type == "image-classification"
    assert found.dataset_name == "bars"
    assert found.dataset_split == results["split"]
    assert found.metric_type == "accuracy"
    assert found.metric_value == pytest.approx(results["accuracy"], abs=5e-5)
    assert f"{results['images']} images" in found.metric_name


def test_no_license_is_made_up(run):
    card = ModelCard(card_text(read_card_subject(run)))
    assert card.data.license is None
    assert "No license is stated" in card.text


def test_every_class_has_its_row(run):
    text = card_text(read_card_subject(run))
    for row in json.loads((run / "results.json").read_text())["classes"]:
        counts = [row["train_images"], row["validation_images"], row["images"]]
        assert f"| {row['name']} | {' | '.join(map(str, counts))} |" in text


def test_the_model_file_alone_is_enough(run):
    whole = read_card_subject(run)
    alone = read_card_subject(run / "model.safetensors")
    assert alone.name == whole.name == "pets"
    assert limitations(alone) == [
        text for text in limitations(whole) if "were held out" not in text
    ]
    assert ModelCard(card_text(alone)).data.eval_results == (
        ModelCard(card_text(whole)).data.eval_results
    )


def test_an_exported_model_is_not_called_damaged(tmp_path, capsys):
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "new").mkdir()
    for name, out in (("card", "card.md"), ("export", "new/model.onnx")):
        assert command(name, tmp_path / "model.onnx", "--out", tmp_path / out) == 2
        assert "an exported model cannot be used for" in capsys.readouterr().err


def test_places_on_the_disk_are_not_told(run, shared_bars):
    text = card_text(read_card_subject(run))
    assert "bars" in text
    assert str(shared_bars.parent) not in text
    assert str(run.parent) not in text


def test_energy_is_arithmetic_and_says_that_it_was_not_measured(run):
    subject = read_card_subject(run)
    subject.results["seconds"] = 7200.0
    (said,) = [fact for fact in training_facts(subject) if "Energy" in fact]
    assert "were not measured" in said
    assert "For every 100 W that the machine drew, this run used 200 Wh." in said


def test_limits_follow_from_the_results(run):
    subject = read_card_subject(run)
    results = subject.results
    results["classes"][0] |= {"images": 0}
    results["classes"][1] |= {"images": 3, "name": "odd"}
    results["problems"] = 2
    said = " ".join(limitations(subject))
    assert f"Nothing is known about '{results['classes'][0]['name']}'" in said
    assert "'odd' (3)" in said
    assert "2 images could not be used" in said
    results["classes"][1] |= {"images": FEW_IMAGES - 1}
    assert f"'odd' ({FEW_IMAGES - 1})" in " ".join(limitations(subject))
    results["classes"][1] |= {"images": FEW_IMAGES}
    assert f"'odd' ({FEW_IMAGES})" not in " ".join(limitations(subject))
    results["classes"] = []
    results["accuracy"] = None
    assert len(limitations(subject)) == 2  # those of any classifier


def test_names_cannot_break_the_card(run):
    file = load_model_file(run)
    for row in file.results["classes"]:
        row["name"] = f"<b>a|b</b> `{row['name']}`\n# no heading\x1b[31m"
    save_model(run / "odd.safetensors", file)
    text = card_text(read_card_subject(run / "odd.safetensors"))
    assert "\n# no heading" not in text
    assert "<b>" not in text
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if "across" in line and line.startswith("|")]
    assert rows
    assert all(line.replace(r"\|", "").count("|") in (4, 5) for line in rows)


def test_facts_of_a_run_cannot_break_the_card(run):
    odd = "x\n\n# no heading\n\n<b>"
    file = load_model_file(run)
    file.provenance["versions"] = {"torch": odd}
    save_model(run / "model.safetensors", replace(file, weights_license=odd))
    (run / "environment.json").write_text(json.dumps({"device_name": odd, "device": "cpu"}))
    (run / "results.json").write_text(json.dumps({**file.results, "tta": odd, "tta_accuracy": 0.5}))
    text = card_text(read_card_subject(run))
    assert text.count("no heading") >= 3
    assert "\n# no heading" not in text
    assert "<b>" not in text


def test_a_card_of_somebodys_own_stays(run):
    (run / "card.md").write_text("---\nlicense: mit\n---\nmine")
    with pytest.raises(OutputError, match="left as it is"):
        write_card(read_card_subject(run), run / "card.md", None)
    assert (run / "card.md").read_text().endswith("mine")
    (run / "card.md").unlink()
    write_card(read_card_subject(run), run / "card.md", None)
    write_card(read_card_subject(run), run / "card.md", "mit")  # its own is replaced
    assert ModelCard.load(run / "card.md").data.license == "mit"


@pytest.mark.parametrize(
    ("altered", "message"),
    [
        ({"seconds": "long"}, "seconds: input should be a valid number"),
        ({"classes": [{"name": "cat"}]}, "classes.0.accuracy: field required"),
        ({"classes": 3}, "classes: input should be a valid array"),
        ({"confused_pairs": [{"classes": ["cat"]}]}, "confused_pairs.0.classes.1: field required"),
        ([1], "the whole: input should be an object"),
    ],
)
def test_an_altered_result_is_named(run, altered, message):
    path = run / "results.json"
    results = json.loads(path.read_text())
    path.write_text(json.dumps(results | altered if isinstance(altered, dict) else altered))
    with pytest.raises(OutputError, match=f"results.json is damaged: {message}"):
        read_card_subject(run)


@pytest.mark.parametrize(
    ("altered", "named"),
    [
        ({"accuracy": 0.123, "images": 4}, "images and accuracy"),
        ({"accuracy": float("nan")}, "accuracy"),
        ({"classes": []}, "classes"),
    ],
)
def test_results_of_another_model_are_refused(run, altered, named, capsys):
    path = run / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | altered))
    for name in ("card", "report"):
        assert command(name, run) == 2
        assert f"the results in the model file differ in {named}" in (capsys.readouterr().err)


@pytest.mark.parametrize("text", ["[1]", '{"split": 3}', "[" * 100_000, '"x"'])
def test_what_is_no_plan_is_left_out(run, text):
    for name in ("plan.json", "environment.json"):
        (run / name).write_text(text)
    card = card_text(read_card_subject(run))
    assert "How images were held out" not in card
    assert "Machine: " not in card


def test_a_run_without_held_out_images_has_no_accuracy(run):
    subject = read_card_subject(run)
    subject.results.update({"accuracy": None, "images": 0, "calibration": []})
    text = card_text(subject)
    assert "model-index" not in text
    assert "the accuracy of this classifier is unknown" in text


def test_the_members_of_a_blend_are_named_with_weights_and_licenses(blended):
    facts = "\n".join(training_facts(read_card_subject(blended)))
    assert "A blend of 3 networks" in facts
    for name, model, weight, size in (
        ("own", "compact", "50.0%", "12x12"),
        ("large", "compact", "30.0%", "19x16"),
        ("small", "quick", "20.0%", "8x9"),
    ):
        assert f"Member {name}, with a weight of {weight}: {model}, from Onsight" in facts
        assert f"its input is {size} pixels" in facts
    assert facts.count("whose license (apache-2.0) and training data matter too") == 1
    assert "reduced to 12x12 pixels in grey" in card_text(read_card_subject(blended))
