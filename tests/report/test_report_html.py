"""report.html is whole, honest, escaped, offline and the same bytes for the same run."""

import base64
import csv
import hashlib
import json
import math
import os
import re
import shlex
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onsight.commands.report import report as report_command
from onsight.errors import OutputError
from onsight.report.page import PlanRow, plan_rows, use_examples, write_report
from onsight.report.run_files import drop_damaged, read_decisions
from onsight.text import percent

HOSTILE = "<script>alert(1)</script>"
FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"]
FASHION += ["Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
VOID = {"meta", "link", "img", "br"}


def wilson(right: int, n: int) -> tuple[float, float, float]:
    share, z = right / n, 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return share, middle - half, middle + half


def metric(name: str, right: int, n: int) -> dict[str, float | None]:
    values = wilson(right, n) if n else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def invent_confusion(size: int, images: int = 1000) -> np.ndarray:
    """Class 1 is mostly mistaken for class 0; the others err here and there."""
    draw = np.random.default_rng(7)
    shares = np.full((size, size), 0.06 / size) * draw.uniform(0, 2, (size, size))
    np.fill_diagonal(shares, draw.uniform(0.88, 0.98, size))
    shares[1, 1], shares[1, 0] = 0.6, 0.25
    shares /= shares.sum(axis=1, keepdims=True)
    return np.stack([draw.multinomial(images, row) for row in shares])


def class_rows(names: list[str], confusion: np.ndarray) -> list[dict[str, Any]]:
    total = int(confusion.sum())
    rows = []
    for index, name in enumerate(names):
        right, true, said = (
            int(confusion[index, index]),
            int(confusion[index].sum()),
            int(confusion[:, index].sum()),
        )
        rows.append(
            {
                "name": name,
                "images": true,
                "predicted": said,
                **metric("recall", right, true),
                **metric("precision", right, said),
                **metric("accuracy", total - true - said + 2 * right, total),
                "f1": 2 * right / (true + said) if true + said else None,
                "train_images": 5400 + index,
                "validation_images": 600,
            }
        )
    return rows


def calibration_bins(total: int) -> list[dict[str, Any]]:
    bins = []
    for index in range(15):
        images = 0 if index < 3 else round(total * 0.7 ** (15 - index) * 0.4286)
        middle = (index + 0.5) / 15
        known = images > 0
        bins.append(
            {
                "low": index / 15,
                "high": (index + 1) / 15,
                "images": images,
                "confidence": middle if known else None,
                "accuracy": middle**1.2 if known else None,
            }
        )
    return bins


def results_of(names: list[str], confusion: np.ndarray) -> dict[str, Any]:
    total, right = int(confusion.sum()), int(np.trace(confusion))
    return {
        **metric("accuracy", right, total),
        "loss": 0.2537 if total else None,
        "images": total,
        "split": "test",
        **metric("top5", total - total // 300, total if len(names) > 5 else 0),
        "expected_calibration_error": 0.0123 if total else None,
        "calibration": calibration_bins(total),
        "classes": class_rows(names, confusion),
        "confusion": confusion.tolist(),
        "used": 70000,
        "problems": 3,
        "notes": [f"class '{names[1]}' has 3 images: too few to hold any out"],
        "model": "compact",
        "device": "cpu",
        "seconds": 123.4,
        "images_per_second": 2412.0,
        "best_epoch": 4,
        "data": "/data/my images",
        "found": "IDX folder: 70,000 images of 28x28, grey",
        "data_wait_share": 0.013,
        "peak_memory_bytes": 1.2e9,
        "parameters": 123456,
        "phases": {
            "decode": 2.1,
            "training": 100.0,
            "validation": 3.0,
            "test": 2.0,
            "report": 1.0,
            "start": 3.1,
        },
    }


def epoch_row(epoch: int) -> dict[str, Any]:
    accuracy, low, high = wilson(round(6000 * (0.92 - 0.2 / epoch)), 6000)
    return {
        "epoch": epoch,
        "train_loss": 0.2 + 0.7 / epoch,
        "validation_loss": 0.24 + 0.5 / epoch,
        "validation_accuracy": accuracy,
        "validation_accuracy_low": low,
        "validation_accuracy_high": high,
        "learning_rate": 0.003 * math.sin(math.pi * epoch / 6),
        "seconds": 20.5,
        "images_per_second": 2412.0,
        "data_wait_share": 0.01,
    }


def draw_images(folder: Path, names: list[str], side: int) -> dict[str, list[dict[str, Any]]]:
    draw = np.random.default_rng(1)
    folder.mkdir()
    gallery: dict[str, list[dict[str, Any]]] = {"right": [], "wrong": []}
    for kind, items in gallery.items():
        for index in range(6):
            file = f"{kind}-{index:02}.png"
            Image.fromarray(draw.integers(0, 255, (side, side), np.uint8)).save(folder / file)
            label, other = names[index % len(names)], names[(index + 1) % len(names)]
            item = {"file": file, "path": f"test[{index}]", "label": label, "probability": 0.987}
            wrong = {"predicted": other, "loss": 5.2 - index / 10}
            items.append(item | (wrong if kind == "wrong" else {"predicted": label}))
    return gallery


def write_rows(path: Path, header: str, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def make_run(
    folder: Path, names: list[str] = FASHION, images: int = 1000, side: int = 28, **changes: Any
) -> Path:
    run = folder / "first-try"
    run.mkdir(parents=True)
    confusion = invent_confusion(len(names), images)
    results = results_of(names, confusion) | changes
    plan = {
        "device": {"value": "cpu", "reason": "no GPU was found", "figure": None},
        "images": {"value": "memory map", "reason": "read in place; 5.5 MB", "figure": 5488000},
        "image_size": {"value": [28, 28], "reason": "all images have it", "figure": None},
    }
    rows = [
        {"kind": kind, "device": "cuda:0", "dtype": kind_of_number, "tensors": tensors}
        | {"numbers": numbers, "bytes": 4 * numbers}
        for kind, kind_of_number, tensors, numbers in (
            ("parameter", "float32", 10, 62006),
            ("batch", "float32", 1, 50176),
        )
    ]
    verdict = "everything is on cuda:0: 62,006 parameters, 0 buffers, 1 batch tensor"
    placement = [{"rank": 0, "device": "cuda:0", "verdict": verdict, "problems": [], "rows": rows}]
    environment = {"versions": {"torch": "2.9.1", "python": "3.11.2"}, "processor": {"cores": 2}}
    facts = {"results": results, "plan": plan, "placement": placement, "environment": environment}
    for name, value in facts.items():
        (run / f"{name}.json").write_text(json.dumps(value))
    epochs = [json.dumps(epoch_row(epoch)) for epoch in range(1, 6)]
    (run / "metrics.jsonl").write_text("\n".join(epochs) + "\n")
    (run / "config.toml").write_text('model = "compact"\nepochs = 5\nseed = 0\n')
    problems = [["a/torn.jpg", "decode", "the file ends early"], ["b.txt", "list", "no image"]]
    write_rows(run / "problems.csv", "path,stage,reason", problems)
    predictions = [["p", names[0], names[1], "0.5"], ["q", names[0], names[0], "0.9"]]
    write_rows(run / "predictions.csv", "path,label,predicted,probability", predictions)
    gallery = draw_images(run / "gallery", names, side)
    (run / "gallery" / "gallery.json").write_text(json.dumps(gallery))
    return run


class Balance(HTMLParser):
    """Fails on a tag that closes nothing, collects ids, addresses, tags and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> crosses another tag"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {key for key, _ in attrs}
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]


def read(run: Path) -> tuple[str, Balance]:
    page = write_report(run).read_text(encoding="utf-8")
    parsed = Balance()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    return page, parsed


def said(parsed: Balance) -> str:
    return " ".join(parsed.text.split())


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.soak), 10, 30, 250])
def test_page_is_well_formed_and_loads_nothing(rendered_figures, tmp_path: Path, size: int) -> None:
    names = FASHION if size == 10 else [f"class {index}" for index in range(size)]
    page, parsed = read(make_run(tmp_path, names, images=1000 if size < 100 else 40))
    assert "://" not in page
    assert not re.search(r"@import|url\((?!#)", page)
    inside = tuple(f"#{name}" for name in parsed.ids)
    assert all(address in inside or address.startswith("data:") for address in parsed.addresses)
    assert "undefined" not in parsed.text
    assert "Left out of this page" not in parsed.text  # a fault of ours would hide there
    assert "None" not in parsed.text.replace("None: all", "")


def test_every_number_of_the_results_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    results = json.loads((run / "results.json").read_text())
    text = said(read(run)[1])
    for value in (results["accuracy"], results["accuracy_low"], results["accuracy_high"]):
        assert percent(value) in text
    for fact in (
        "10,000",
        "0.2537",
        "1.2%",
        "70,000 used",
        "3 unreadable or skipped",
        "2 min 3 s",
        "123,456",
    ):
        assert fact in text
    for row in results["classes"]:
        for key in ("recall", "precision", "accuracy"):
            low, high = percent(row[f"{key}_low"]), percent(row[f"{key}_high"])
            n = {"recall": row["images"], "precision": row["predicted"]}.get(key)
            counted = f" n = {n:,}" if n else ""
            assert f"{percent(row[key])}{counted} {low} to {high}" in text
        assert percent(row["f1"]) in text
        assert f"{row['train_images']:,}" in text
    for counts in results["confusion"]:
        assert " ".join(f"{count:,}" for count in counts).replace(" ", "") in text.replace(" ", "")
    for row in results["calibration"]:
        if row["images"]:
            assert f"{row['images']:,} {percent(row['confidence'])}".replace(" ", "") in (
                text.replace(" ", "")
            )
    for phrase in (
        "no GPU was found",
        "read in place; 5.5 MB",
        "versions › torch",
        "the file ends early",
        "everything is on cuda:0: 62,006 parameters, 0 buffers, 1 batch tensor.",
        "parametercuda:0float321062,006248,024",  # a row's cells stand without spaces between
        "batchcuda:0float32150,176200,704",
    ):
        assert phrase in text


def test_the_accuracy_of_several_views_stands_beside_the_plain_one(tmp_path: Path) -> None:
    asked = {"tta": "flip", "tta_images": 4321, "tta_accuracy": 0.9513}
    asked |= {"tta_accuracy_low": 0.9447, "tta_accuracy_high": 0.9571}
    text = said(read(make_run(tmp_path / "asked", **asked))[1])
    beside = "95.1% (94.5% to 95.7%, n = 4,321)averaged over several views of each image (flip)"
    assert beside in text
    assert "several views" not in said(read(make_run(tmp_path / "plain"))[1])


def test_what_qualifies_the_accuracy_is_said(rendered_figures, tmp_path: Path) -> None:
    pair = {"classes": [HOSTILE, "Bag"], "told_apart": "no", "images": 84, "mistakes": 40}
    point = {"images": 300, "accuracy": 0.8, "accuracy_low": 0.75, "accuracy_high": 0.84}
    law = {"exponent": 0.3, "factor": 1.0, "gain": 0.03, "gain_low": 0.01, "gain_high": 0.05}
    asked = {
        "confused_pairs": [pair | metric("accuracy", 44, 84)] * 9,
        "learning_curve": law | {"points": [point | {"train_images": n} for n in (50, 100, 200)]},
        "temperature": 1.5,
        "temperature_reason": "fitted on 512 validation images",
        "expected_calibration_error_before": 0.0456,
        "calibration_before": calibration_bins(500),
        **metric("balanced_accuracy", 812, 1000),
    }
    page, parsed = read(make_run(tmp_path / "asked", **asked))
    assert HOSTILE not in page
    text = said(parsed)
    for phrase in (
        f"'{HOSTILE}' and 'Bag' cannot be distinguished on these images: 52% correct (95% CI 42",
        "1 more pair",
        "about +3.0 points of accuracy (95% CI 1.0 to 5.0)",
        "(4.6% before temperature scaling; T = 1.5, fitted on 512 validation images)",
    ):
        assert phrase in text
    for figure in (">before temperature scaling<", "training images"):
        assert figure in page
    assert "Balanced accuracy" not in text  # all classes have 1,000 images
    plain = said(read(make_run(tmp_path / "plain"))[1])
    assert "temperature" not in plain
    assert "more images help" not in plain
    assert "distinguished" not in plain


def test_hostile_names_are_text_only(tmp_path: Path) -> None:
    names = [HOSTILE, '" onload="alert(2)', 'id="x" #010203 url(#y)', "猫 & $x$", "a\nb"]
    run = make_run(tmp_path, names)
    page, parsed = read(run)
    assert HOSTILE not in page
    assert parsed.tags.count("script") == 1
    for name in (*names[:4], "a b"):
        assert name in said(parsed)
    assert "onload" not in parsed.attributes


def test_hostile_names_stay_text_inside_figures(rendered_figures, tmp_path: Path) -> None:
    odd = [HOSTILE, '" onload="a', 'id="x" #010203', "$x$ 猫"]
    page, parsed = read(make_run(tmp_path, odd + [f"class {index}" for index in range(26)]))
    figure = page[page.index('aria-label="Confusion matrix of 30') :].partition("</svg>")[0]
    texts = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)<", figure)]
    assert parsed.tags.count("script") == 1
    for name in (HOSTILE[:17] + "…", *odd[1:]):
        assert texts.count(name) == 2


def test_policy_allows_the_one_script_only(tmp_path: Path) -> None:
    page = read(make_run(tmp_path))[0]
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'; img-src data:" in page


def test_what_a_frozen_networks_head_learned_from_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, best_epoch=0)
    (run / "metrics.jsonl").write_text(json.dumps(epoch_row(1) | {"epoch": 0}) + "\n")
    plain = said(read(run)[1])
    assert "fitted on the features of the frozen network, with a validation accuracy" in plain
    assert "the final one was then refit" not in plain
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"fitted": 60045}))
    sentence = "That classifier was fitted on the training images only, and so was the temperature"
    refitted = said(read(run)[1])
    assert sentence in refitted
    assert "on all 60,045 training and validation images" in refitted


def test_a_frozen_networks_report_has_no_empty_parts(tmp_path: Path) -> None:
    run = make_run(tmp_path, best_epoch=0)
    fold = {"fold": 1, "images": 9, "epochs": 0, "best_epoch": 0, "seconds": 1.5}
    fold |= {"accuracy": 0.5, "accuracy_low": 0.3, "accuracy_high": 0.7}
    nothing = {"epochs": 0, "images_per_second": 0.0, "data_wait_share": 0.0}
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | nothing | {"fold_results": [fold]}))
    (run / "metrics.jsonl").write_text(json.dumps(epoch_row(1) | {"epoch": 0}) + "\n")
    (run / "placement.json").unlink()
    plan = {"precision": {"value": "bf16", "reason": "x"}, "measured": {"value": [], "reason": "y"}}
    (run / "plan.json").write_text(json.dumps(plan))
    text = said(read(run)[1])
    assert "Each fold was evaluated by a model" in text
    assert "Peak memory" in text
    for husk in (
        "0 images per second",
        "waited for data",
        "All epochs in numbers",
        "Best epoch",
        "measured",
        "placement",
    ):
        assert husk not in text


def test_same_run_gives_the_same_bytes(rendered_figures, tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(30)]
    run = make_run(tmp_path, names)
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_no_held_out_image_claims_nothing(tmp_path: Path) -> None:
    text = said(read(make_run(tmp_path, images=0))[1])
    assert "There are no held-out images, so the accuracy of this" in text
    assert "accuracy unknown, n = 0" in text
    assert "There are no held-out images, so no mistakes are known." in text
    assert "expect an accuracy" not in text


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    kept = {"results.json"}
    for path in [path for path in run.rglob("*") if path.is_file() and path.name not in kept]:
        path.unlink()
    text = said(read(run)[1])
    names = ("metrics.jsonl", "plan.json", "environment.json", "problems.csv", "config.toml")
    for name in (*names, "placement.json"):
        assert f"no readable {name}" in text
    assert "no readable gallery/gallery.json" in text


def test_files_that_are_broken_cost_their_section_only(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    names = ("metrics.jsonl", "plan.json", "environment.json", "config.toml", "placement.json")
    for name in names:
        (run / name).write_bytes(b'{"half": \xff')
    (run / "gallery" / "wrong-00.png").write_bytes(b"not an image")
    text = said(read(run)[1])
    assert text.count("no readable") == 5
    assert text.count("image not saved") == 1


def test_files_that_are_bombs_cost_their_section_only(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_text("[" * 100_000)
    (run / "environment.json").write_text("[" * 500 + "]" * 500)
    (run / "config.toml").write_text("a = " + "[" * 10_000)
    for name in ("plan.json", "gallery/wrong-00.png"):
        (run / name).unlink()
        os.mkfifo(run / name)
    (run / "placement.json").unlink()
    (run / "placement.json").symlink_to("/dev/zero")
    text = said(read(run)[1])
    assert text.count("no readable") == 5
    assert text.count("image not saved") == 1


@pytest.mark.parametrize(
    ("file", "key", "odd"),
    [
        ("results.json", "confusion", []),
        ("results.json", "accuracy", "high"),
        ("gallery/gallery.json", "right", None),
    ],
)
def test_altered_values_cost_their_section_only(
    tmp_path: Path, file: str, key: str, odd: object
) -> None:
    run = make_run(tmp_path)
    whole = json.loads((run / file).read_text())
    (run / file).write_text(json.dumps(whole | {key: odd}))
    text = said(read(run)[1])
    assert f"because of values of a wrong type: {file}: {key}." in text


def test_what_works_is_kept_however_much_does_not() -> None:
    def render(contents: dict[str, Any]) -> int:
        numbers = contents["a"] or {}
        return sum(numbers.values()) + (contents["b"] or 0) + len(contents["c"] or ())

    contents = {"a": {"x": 1, "y": "odd", "z": []}, "b": "odd", "c": "ok"}
    kept, damaged = drop_damaged(contents, render)
    assert kept == {"a": {"x": 1}, "b": None, "c": "ok"}
    assert damaged == ["a: y", "a: z", "b"]
    kept, damaged = drop_damaged({"a": {"x": "odd", "y": 1}, "b": 1, "c": None}, render)
    assert (kept["a"], damaged) == ({"y": 1}, ["a: x"])


def test_two_wrong_values_among_many_cost_few_renderings() -> None:
    rendered = []

    def render(contents: dict[str, Any]) -> None:
        rendered.append(contents)
        assert "odd" not in (contents["a"] or {}).values()

    values: dict[str, Any] = {str(number): number for number in range(1000)}
    kept, damaged = drop_damaged({"a": values | {"500": "odd", "900": "odd"}}, render)
    assert (len(kept["a"]), damaged) == (998, ["a: 500", "a: 900"])
    assert len(rendered) < 60


def test_a_picture_that_is_listed_many_times_is_shown_once(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    place = run / "gallery" / "gallery.json"
    gallery = json.loads(place.read_text())
    once = read(run)[0]
    place.write_text(json.dumps(gallery | {"wrong": 1000 * gallery["wrong"][:1]}))
    page = read(run)[0]
    assert len(page) < 2 * len(once)
    picture = (run / "gallery" / gallery["wrong"][0]["file"]).read_bytes()
    assert page.count(base64.b64encode(picture).decode()) == 1


def test_run_without_results_is_called_unfinished(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "results.json").unlink()
    page, parsed = read(run)
    assert "it has not finished" in said(parsed)
    assert 'aria-label="Training and validation loss by epoch"' in page


def test_damaged_results_are_called_damaged_not_unfinished(tmp_path: Path, capsys) -> None:
    run = make_run(tmp_path)
    text = (run / "results.json").read_text()
    (run / "results.json").write_text(text[:100])
    report_command(run)
    assert "results.json is damaged" in capsys.readouterr().err
    page = said(read(run)[1])
    assert "results.json is damaged, so its accuracy is unknown" in page
    assert "has not finished" not in page
    assert "no held-out images" not in page


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is not a run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_confusion_is_drawn_as_the_number_of_classes_allows(tmp_path: Path) -> None:
    pages = {}
    for size in (10, 30, 250):
        names = [f"class {index}" for index in range(size)]
        pages[size] = read(make_run(tmp_path / str(size), names, images=40))[0]
    assert 'class="matrix long"' in pages[10]
    assert "Confusion matrix of 30 classes" in pages[30]
    assert "Only the 50 worst of 250 classes are shown" in pages[250]
    assert "250 classes are too many to draw" in pages[250]
    assert [page.count('<td><span class="name">class ') for page in pages.values()] == [10, 20, 30]


def test_pairs_come_from_predictions_when_there_is_no_matrix(tmp_path: Path) -> None:
    names = [f"class {index}" for index in range(1001)]
    run = make_run(tmp_path, names, images=1, confusion=None)
    text = said(read(run)[1])
    assert "1 confusion; 1 mistake in 1,001 images." in text
    assert "With 1,001 classes no matrix is saved" in text


def test_image_size_decides_how_it_is_scaled(tmp_path: Path) -> None:
    assert read(make_run(tmp_path / "a", side=28))[0].count('class="tiny"') == 12
    assert read(make_run(tmp_path / "b", side=160))[0].count('class="tiny"') == 0


def test_mistakes_show_the_training_images_most_like_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    place = run / "gallery" / "gallery.json"
    gallery = json.loads(place.read_text())
    Image.fromarray(np.zeros((28, 90), np.uint8)).save(run / "gallery" / "near-00.png")
    near = [{"path": f"train[{n}]", "label": f"<like {n}>", "similarity": 0.91} for n in range(3)]
    gallery["wrong"][0] |= {"near": near, "near_file": "near-00.png"}
    gallery["wrong"][1] |= {"near": near, "near_file": "near-01.png"}  # missing
    before = read(run)[0].count("data:image/png")
    for said_of, searched in (
        ("a sample of 2,000 of the 54,000 training images", {"searched": 2000, "of": 54000}),
        ("among all 54,000 training images", {"searched": 54000, "of": 54000}),
        ("are not shown: no time.", {"searched": 0, "of": 54000, "reason": "no time"}),
    ):
        place.write_text(json.dumps(gallery | {"lookalikes": searched}))
        page, parsed = read(run)
        assert said_of in said(parsed)
    assert page.count("data:image/png") == before + 1
    assert said(parsed).count("<like 0> <like 1> <like 2>") == 1


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_every_image_shows_what_it_is_and_what_was_said(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path)
    items = json.loads((run / "gallery" / "gallery.json").read_text())[kind]
    text = said(read(run)[1])
    for item in items:
        assert f"{item['label']} predicted {item['predicted']} 98.7%" in text


def test_command_repeats_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    page = unescape(read(run)[0])
    assert f"onsight train '/data/my images' --config {run}/config.toml" in page


def test_commands_and_a_program_use_the_model_in_its_real_place(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my runs")
    blocks = [unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", read(run)[0], re.S)]
    for command in ("predict", "serve", "export"):
        (words,) = [shlex.split(block) for block in blocks if f"onsight {command} " in block]
        assert words[:3] == ["onsight", command, str(run)]
    (program,) = [block for block in blocks if block.startswith("import onsight")]
    loaded: list[str] = []
    onsight = SimpleNamespace(load=lambda path: loaded.append(path) or str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "onsight", onsight)
        exec(program, {})
    assert loaded == [str(run)]
    own = dict(use_examples(run, "nets:make"))
    assert own["Classify in a browser, or over HTTP"].endswith(" --module nets:make")
    assert "module='nets:make')" in own["In Python"]


def test_no_problem_is_said_plainly(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "problems.csv").write_text("path,stage,reason\n")
    assert "None: all 70,000 images were used." in said(read(run)[1])


def test_each_rank_says_where_everything_was_and_what_to_mend(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (entry,) = json.loads((run / "placement.json").read_text())
    slip = {"name": "mask", "kind": "plain tensor attribute", "fix": f"self.x = {HOSTILE}"}
    slip["what"] = "mask is on cpu, but the model is on cuda:1"
    other = entry | {"rank": 1, "device": "cuda:1", "verdict": slip["what"], "problems": [slip]}
    (run / "placement.json").write_text(json.dumps([entry, other]))
    page, parsed = read(run)
    text = said(parsed)
    assert "Rank 0: everything is on cuda:0" in text
    assert f"Rank 1: {slip['what']}. Fix: self.x = {HOSTILE}" in text
    assert text.count(slip["what"]) == 1
    assert "All tensors of rank 1" in text
    assert HOSTILE not in page


@pytest.mark.parametrize("odd", ["{}", "7", "[1, null]", '[{"rank": 0, "rows": 3}]'])
def test_an_odd_placement_costs_its_section_only(tmp_path: Path, odd: str) -> None:
    run = make_run(tmp_path)
    (run / "placement.json").write_text(odd)
    assert "no GPU was found" in said(read(run)[1])


def test_measured_ways_are_rows_of_their_own():
    ways = [
        {"precision": "bf16", "threads": 2, "compile": "off", "images_per_second": 4326.8},
        {"precision": "fp16", "threads": 2, "compile": "on", "refused": "the loss differs"},
    ]
    plan = {
        "threads": {"value": 2, "reason": "set by you"},
        "measured": {"value": ways, "reason": "measured in 1.2 s"},
    }
    assert plan_rows(plan) == [
        PlanRow("threads", 2, "set by you"),
        PlanRow("measured", "precision bf16, threads 2", "4,326.8 images/s"),
        PlanRow("measured", "precision fp16, threads 2, compiled", "rejected: the loss differs"),
    ]
    unmeasured = {"measured": {"value": [], "reason": "so short a run"}}
    assert plan_rows(unmeasured) == []  # each choice has this reason


def test_memory_that_ran_out_in_training_is_a_row_of_the_plan(tmp_path):
    run = make_run(tmp_path)
    lines = [
        '{"decision": "run", "value": {"images": "1f"}}',
        '{"decision": "accumulate from epoch 2, step 0", "value": 2}',
        '{"decision": "segment 0", "value": {"steps": 5}}',
        "[1, 2]",
        '{"value": 3}',
        '{"decision": "accumulate from epoch 2, step 0", "value": 4}',
        '{"decision": "accumulate from epoch 3, st',
    ]
    (run / "decisions.jsonl").write_text("\n".join(lines))
    decisions = read_decisions(run)
    reason = "memory ran out in training: from epoch 2, step 0"
    assert plan_rows({"ranks": {"value": 1, "reason": "one process"}}, decisions) == [
        PlanRow("ranks", 1, "one process"),
        PlanRow("accumulate", 4, reason),
    ]
    assert reason in said(read(run)[1])
    (run / "decisions.jsonl").unlink()
    assert "memory ran out" not in said(read(run)[1])
