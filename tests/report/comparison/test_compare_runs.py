"""A comparison as users get it: figures against plain counts, words, errors, real runs."""

import json
import zipfile

import numpy as np
import pytest
from planted_runs import plant_counts, plant_run, said
from scipy import stats

import onsight
from onsight.cli import main
from onsight.data.sources import find
from onsight.errors import ModelError, OutputError
from onsight.evaluation.statistics import PairedCounts, difference_interval, wilson
from onsight.report.compare_result import Gap, significance
from onsight.report.console import SilentReporter


def run_command(capsys, *words):
    """(exit code, stdout, stderr) of `onsight compare`."""
    with pytest.raises(SystemExit) as stop:
        main(["compare", *map(str, words)])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_a_difference_within_noise(tmp_path):
    found = onsight.compare(*plant_counts(tmp_path, 80, 6, 9, 5))
    (gap,) = found.gaps
    assert found.best == gap.above == "second"
    assert tuple(gap.counts) == (80, 9, 6, 5)
    assert gap.p == gap.corrected_p == pytest.approx(stats.binomtest(6, 15).pvalue)
    assert [run.accuracy for run in found.runs] == [0.86, 0.89]
    low, high = difference_interval(PairedCounts(80, 9, 6, 5))
    assert (
        f"second is 3.0 points above first (95% CI {100 * low:.1f} to {100 * high:.1f}, "
        "n = 100): not significant (p = 0.61)"
    ) in str(found)
    assert "both correct 80, only second 9, only first 6, neither 5" in str(found)
    assert "settings that differ: seed 0 / 1" in str(found)


def test_a_removed_setting_counts_only_where_it_was_used(tmp_path):
    names, rows = ("one", "two", "three"), [said(1, "cat", "cat")]
    used = [{}, {"decode_on": "cpu"}, {"decode_on": "gpu"}]
    runs = [
        plant_run(tmp_path / name, rows, **more) for name, more in zip(names, used, strict=True)
    ]
    assert "settings that differ: none" in str(onsight.compare(*runs[:2]))
    assert "settings that differ: decode on" in str(onsight.compare(*runs[1:]))


def test_a_clear_difference(tmp_path):
    text = str(onsight.compare(*plant_counts(tmp_path, 60, 30, 4, 6)))
    assert "first is 26.0 points above second" in text
    assert "significant (p < 0.001)" in text
    assert "Classes with a significant difference:\n  cat: first recognises 26.0 points" in text


def test_runs_that_are_right_on_the_same_images(tmp_path):
    text = str(onsight.compare(*plant_counts(tmp_path, 8, 0, 0, 2)))
    assert "first and second are correct on exactly the same images (n = 10)" in text


def test_runs_that_are_equally_accurate(tmp_path):
    text = str(onsight.compare(*plant_counts(tmp_path, 8, 3, 3, 2)))
    assert "first and second are equally accurate (95% CI" in text
    assert "not significant (p = 1)" in text


def plant_three(folder):
    """Of 100 images, runs a, b and c get the first 95, 88 and 70 right; half are dogs."""
    return [
        plant_run(
            folder / name,
            [
                said(place, label, label if place < right else other)
                for place in range(100)
                for label, other in [("cat", "dog") if place % 2 else ("dog", "cat")]
            ],
        )
        for name, right in (("b", 88), ("a", 95), ("c", 70))
    ]


def test_three_runs_are_corrected_for_all_three_pairs(tmp_path):
    found = onsight.compare(*plant_three(tmp_path))
    p_ab, p_ac, p_bc = (2 * 0.5**n for n in (7, 25, 18))
    assert found.best == "a"
    assert [gap.below for gap in found.gaps] == ["b", "c"]
    assert [gap.p for gap in found.gaps] == pytest.approx([p_ab, p_ac])
    assert p_bc < p_ab
    assert [gap.corrected_p for gap in found.gaps] == pytest.approx([p_ab, 3 * p_ac])
    assert "a is 7.0 points above b" in str(found)
    assert "corrected p = 0.016" in str(found)


def test_classes_stand_out_only_after_correction_for_their_number(tmp_path):
    found = onsight.compare(*plant_three(tmp_path))
    assert {(name, gap.above, gap.below) for name, gap in found.class_gaps} == {
        ("cat", "a", "c"),
        ("dog", "a", "c"),
    }
    assert [gap.counts.n for _, gap in found.class_gaps] == [50, 50]


def test_facts_are_json_with_every_n_and_interval(tmp_path):
    facts = json.loads(json.dumps(onsight.compare(*plant_counts(tmp_path, 80, 6, 9, 5)).facts()))
    assert facts["images"] == 100
    (difference,) = facts["differences"]
    assert difference["above"] == "second"
    assert difference["difference_low"] < difference["difference"] < difference["difference_high"]
    assert difference["images"] == sum(
        difference[name]
        for name in ("both_right", "only_above_right", "only_below_right", "both_wrong")
    )
    assert facts["runs"][0]["left_out"] == {"seen": 0, "relabelled": 0, "absent": 0}
    assert facts["settings"] == {"seed": [0, 1]}


def test_what_is_left_out_and_different_splits_are_said(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(10)]
    first = plant_run(tmp_path / "one", rows, test_fraction=0.2)
    second = plant_run(tmp_path / "two", rows[:4], seen=[row.digest for row in rows[4:9]])
    notes = onsight.compare(first, second).notes
    assert notes == (
        "of the 10 held-out images of one, 6 are not compared: 5 that another run or the weights "
        "it started from learned from and 1 not held out by every run",
        "the runs split their images differently: test fraction 0.2 / 0.1",
    )


def test_images_that_the_weights_of_all_runs_learned_from_are_compared_with_a_note(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(10)]
    seen = [row.digest for row in rows[:4]]
    found = onsight.compare(*(plant_run(tmp_path / name, rows, seen=seen) for name in "ab"))
    assert found.images == 10
    assert found.notes == (
        "the weights that all runs started from have learned from 4 of the images, so all "
        "accuracies are too high for new ones",
    )


def test_validation_results_are_said_to_be_flattered(tmp_path):
    rows = [said(1, "cat", "cat")]
    first = plant_run(tmp_path / "one", rows)
    second = plant_run(tmp_path / "two", rows, split="validation")
    assert onsight.compare(first, second).notes == (
        "the images of two also chose which epoch to keep, so its accuracy is optimistic",
    )


def test_the_interval_of_a_cross_validated_run_is_as_wide_as_in_its_results(tmp_path):
    rows = [said(number, "cat", "cat" if number else "dog") for number in range(10)]
    folded = [row._replace(fold=number % 5) for number, row in enumerate(rows)]
    first = plant_run(tmp_path / "one", folded, split="folds")
    second = plant_run(tmp_path / "two", rows)
    found = onsight.compare(first, second)
    z = 1.959963984540054
    assert (found.runs[0].accuracy_low, found.runs[0].accuracy_high) == pytest.approx(
        wilson(9, 10, z * 2.25**0.5)
    )
    assert (found.runs[1].accuracy_low, found.runs[1].accuracy_high) == wilson(9, 10, z)
    assert found.notes == (
        "the predictions of one are cross-validated, by models trained on fewer images than the "
        "final one",
    )


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    folders = [plant_run(tmp_path / name / "run", [said(1, "cat", "cat")]) for name in "ab"]
    assert [run.name for run in onsight.compare(*folders).runs] == [
        str(folder) for folder in folders
    ]


def test_errors_say_what_to_do(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(3)]
    good = plant_run(tmp_path / "good", rows)
    other = plant_run(tmp_path / "other", [said(9, "cat", "cat")], data="birds")
    trained = plant_run(tmp_path / "trained", [said(8, "cat", "cat")], seen=[rows[0].digest])
    classes = plant_run(tmp_path / "classes", rows, classes=("cat", "cow", "dog"))
    resized = plant_run(tmp_path / "resized", [said(9, "cat", "cat")], size=24)
    empty = plant_run(tmp_path / "empty", [])
    unfinished, nothing = tmp_path / "unfinished", tmp_path / "nothing"
    (unfinished / "checkpoints").mkdir(parents=True)
    nothing.mkdir()
    for runs, said_so in (
        ([], "give two run folders, as in"),
        ([good], "give another run folder to compare .*good with, as in"),
        ([good, good], "given twice"),
        ([good, tmp_path / "absent"], "does not exist"),
        ([good, good / "results.json"], "is a file; give the run's folder"),
        ([good, unfinished], "has not finished"),
        ([good, nothing], "is not a run folder"),
        ([good, classes], "only classes has 'cow'"),
        ([good, other], "Compare runs on the same DATA"),
        ([good, resized], "decoded for another size"),
        ([good, trained], "one was trained on what another held out"),
        ([good, empty], "empty held out no images"),
    ):
        with pytest.raises(OutputError, match=said_so):
            onsight.compare(*runs)


@pytest.mark.parametrize(
    "text", ["", "path,label\na,cat\n", "path,label,predicted,probability\na,cat,cow,0.5\n"]
)
def test_a_damaged_table_is_refused(tmp_path, text):
    first, second = plant_counts(tmp_path, 3, 1, 1, 1)
    (second / "predictions.csv").write_text(text)
    with pytest.raises(OutputError, match=r"predictions\.csv is damaged|no images"):
        onsight.compare(first, second)


@pytest.mark.parametrize(
    ("altered", "message"),
    [
        (lambda text: text[: text.rindex("cat/5.png")], "it has 5 rows, but 6 images were"),
        (lambda text: text.replace("0.9", "7", 1), "a probability is not from 0 to 1"),
        (lambda text: text.replace("0.9", "nan", 1), "a probability is not from 0 to 1"),
        (lambda text: text.replace("0.9", "-0.1", 1), "a probability is not from 0 to 1"),
    ],
)
def test_an_altered_table_is_refused(tmp_path, altered, message):
    first, second = plant_counts(tmp_path, 3, 1, 1, 1)
    path = second / "predictions.csv"
    path.write_text(altered(path.read_text()))
    with pytest.raises(OutputError, match=rf"predictions\.csv is damaged: {message}"):
        onsight.compare(first, second)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "the whole: input should be an object"),
        ('{"seconds": "long"}', "seconds: input should be a valid number"),
        ('{"epochs": [1]}', "epochs: input should be a valid integer"),
    ],
)
def test_altered_results_are_refused(tmp_path, text, message):
    first, second = plant_counts(tmp_path, 3, 1, 1, 1)
    (second / "results.json").write_text(text)
    with pytest.raises(OutputError, match=rf"results\.json is damaged: {message}"):
        onsight.compare(first, second)


def test_a_damaged_model_file_is_refused(tmp_path):
    first, second = plant_counts(tmp_path, 3, 1, 1, 1)
    (second / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="damaged"):
        onsight.compare(first, second)


def test_the_command_prints_and_writes_a_page(tmp_path, capsys, monkeypatch):
    folders = plant_counts(tmp_path, 80, 6, 9, 5)
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, *folders)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "100 images held out by both runs"
    assert out.splitlines()[-1] == "page: compare.html"
    assert (tmp_path / "compare.html").is_file()
    code, out, _ = run_command(capsys, *folders, "--json", "--out", tmp_path / "pages")
    assert code == 0
    assert json.loads(out)["page"] == str(tmp_path / "pages" / "compare.html")


@pytest.mark.parametrize("data", ["http://localhost/pets", "cifar10"])
def test_a_page_contacts_nothing_that_a_run_names(tmp_path, monkeypatch, data):
    def contact(*_):
        raise AssertionError("contacted")

    monkeypatch.setattr(find.Remote, "open", contact)
    monkeypatch.setattr(find, "read_named", contact)
    rows = [said(0, "cat", "cat")]
    runs = [plant_run(tmp_path / name, rows, data=data) for name in ("first", "second")]
    rows[0] = said(0, "cat", "dog")
    runs.append(plant_run(tmp_path / "third", rows, data=data, cache_folder=str(tmp_path / "c")))
    assert onsight.compare(*runs).save_page(tmp_path / "page.html").is_file()
    assert not (tmp_path / "c").exists()


def test_a_file_that_is_not_a_page_is_left_alone(tmp_path, capsys):
    folders = plant_counts(tmp_path, 80, 6, 9, 5)
    own = tmp_path / "compare.html"
    own.write_text("mine")
    code, out, err = run_command(capsys, *folders, "--out", own)
    assert (code, out) == (2, "")
    assert "name another file" in err
    assert own.read_text() == "mine"


def test_a_folder_and_its_zip_give_the_same_images(trained, shared_bars, tmp_path):
    archive = tmp_path / "bars.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(shared_bars.rglob("*.png")):
            file.write(path, f"elsewhere/{path.relative_to(shared_bars)}")
    fields = {"epochs": 1, "batch_size": 16, "threads": 1, "seed": 7, "plan": "default"}
    other = onsight.train(archive, out=tmp_path / "zip", reporter=SilentReporter(), **fields)
    found = onsight.compare(trained.path, other.path)
    assert found.images == trained.results["images"] == other.results["images"]
    assert found.notes == ()
    assert [run.accuracy for run in found.runs] == [trained.accuracy, other.accuracy]
    changed = {setting.name for setting in found.settings}
    assert {"data", "seed", "epochs"} <= changed
    page = found.save_page(tmp_path / "page.html").read_text(encoding="utf-8")
    differing = sum(
        int(np.sum(first.predicted[rows] != second.predicted[others]))
        for (first, rows), (second, others) in [
            zip(found.held_out, found.pairing.rows, strict=True)
        ]
    )
    assert page.count('<img src="data:image/png') == min(differing, 60)


@pytest.mark.parametrize(
    ("low", "p", "corrected_p", "words"),
    [
        (-0.01, 0.2, 0.2, "not significant (p = 0.2)"),
        (0.001, 0.06, 0.06, "borderline (p = 0.06)"),
        (0.01, 0.0001, 0.0001, "significant (p < 0.001)"),
        (0.01, 0.03, 0.09, "not significant, considering how many runs are compared"),
    ],
)
def test_the_verdict_follows_the_corrected_p_value(low, p, corrected_p, words):
    gap = Gap("a", "b", PairedCounts(80, 9, 6, 5), low, 0.1, p, corrected_p)
    assert words in significance(gap, corrected=p != corrected_p)
