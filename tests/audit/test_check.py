"""A check of images with planted faults, against what was planted."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.audit import check as check_module
from onsight.audit.run_check import write_clean_manifest
from onsight.cli import main
from onsight.data.duplicates.candidates import resize_to_planes
from onsight.data.sources.find import find_source
from onsight.errors import DataError, OutputError
from onsight.installation import install_command
from onsight.report.console import SilentReporter

QUIET = SilentReporter()


def reduce_images(pack, *_):
    """Images of 16x16 pixels in place of features, which takes a moment."""
    return resize_to_planes(pack.take(np.arange(len(pack))), 16).flatten(1) / 255


@pytest.fixture(autouse=True)
def no_backbone(monkeypatch):
    monkeypatch.setattr(check_module, "embed_images", reduce_images)


def image(kind: str, seed: int, side: int = 40) -> Image.Image:
    """Coarse noise with a bright bar across or down."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 90, (10, 10, 3), np.uint8)
    place = int(rng.integers(2, 8))
    if kind == "across":
        pixels[place] = 250
    else:
        pixels[:, place] = 250
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR)


def images(folder: Path, count: int = 40) -> Path:
    for label, kind in enumerate(("across", "down")):
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            image(kind, 1000 * label + number).save(folder / kind / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    """Eighty images with one fault of each kind."""
    data = images(tmp_path_factory.mktemp("faulty") / "data")
    shutil.copy(data / "across/00.png", data / "across/same.png")
    shutil.copy(data / "across/01.png", data / "down/same-two-labels.png")
    image("down", 1002).resize((61, 57)).save(data / "down/resized.png")
    image("down", 5000).save(data / "across/wrong-label.png")
    (data / "down/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    Image.new("RGB", (40, 40), (9, 200, 30)).save(data / "down/blank.png")
    image("down", 5001).point(lambda value: value // 8).save(data / "down/dark.png")
    image("down", 5002).resize((400, 40)).save(data / "down/long.png")
    return data


@pytest.fixture(scope="module")
def audit(faulty):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_module, "embed_images", reduce_images)
        return onsight.check(faulty, reporter=QUIET)


def paths(audit, kind: str, text: str = "") -> set[tuple[str, ...]]:
    return {
        tuple(sorted(item.path for item in finding.items))
        for finding in audit.of(kind)
        if text in finding.description
    }


def copies(audit) -> set[tuple[str, ...]]:
    return set().union(
        *(paths(audit, kind) for kind in ("leakage", "two-labels", "identical", "near-duplicate"))
    )


def test_every_file_is_counted(audit):
    assert audit.files == 88
    assert audit.images == 87
    assert sum(audit.classes.values()) == 87


def test_the_planted_copies_are_found_and_no_others(audit):
    assert copies(audit) == {
        ("across/00.png", "across/same.png"),
        ("across/01.png", "down/same-two-labels.png"),
        ("down/02.png", "down/resized.png"),
    }


def test_an_image_under_two_labels_is_a_kind_of_its_own(audit):
    assert ("across/01.png", "down/same-two-labels.png") in paths(audit, "two-labels", "identical")


def test_the_wrong_label_is_the_first_suspect(audit):
    first = audit.of("label")[0]
    suspects = {"across/wrong-label.png", "across/01.png", "down/same-two-labels.png"}
    assert first.items[0].path in suspects
    assert ("across/wrong-label.png",) in paths(audit, "label", "looks like 'down'")
    assert len(audit.of("label")) <= 5


def test_unusable_files_are_listed_with_the_reason(audit):
    (finding,) = audit.of("unusable")
    assert finding.items[0].path == "down/broken.png"
    assert finding.description.startswith("not an image that can be read")


@pytest.mark.parametrize(
    ("file", "what"),
    [("blank", "nearly blank"), ("dark", "very dark"), ("long", "odd shape (400x40)")],
)
def test_poor_images_are_found(audit, file, what):
    assert paths(audit, "quality", what) == {(f"down/{file}.png",)}


def test_a_sound_dataset_has_no_findings(tmp_path):
    found = onsight.check(images(tmp_path / "data"), reporter=QUIET)
    assert [finding.facts() for finding in found.findings if finding.kind != "label"] == []
    assert len(found.of("label")) <= 1


def test_training_leaves_out_what_the_check_announces(tmp_path):
    """After a check, training lists the unusable files and the leaking copies, nothing else."""
    folder = with_leaks(tmp_path / "data")
    found = onsight.check(folder, quick=True, reporter=QUIET)
    run = onsight.train(folder, out=tmp_path / "run", epochs=1, model="linear", reporter=QUIET)
    with open(run.path / "problems.csv") as file:
        excluded = {row["path"] for row in csv.DictReader(file)}
    announced = {
        item.path
        for finding in found.of("leakage")
        for item in finding.items
        if finding.in_training == f"the one in {item.split} is excluded"
    }
    assert excluded == announced == {"train/b/near.png", "train/a/same.png"}


def test_ids_stay_when_images_are_added(audit, faulty, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(faulty, data)
    image("across", 7777).save(data / "across/more.png")
    again = onsight.check(data, quick=True, reporter=QUIET)
    before = {finding.id for finding in audit.findings if finding.kind != "label"}
    assert before == {finding.id for finding in again.findings}
    assert len(before) == len([finding for finding in audit.findings if finding.kind != "label"])


def test_a_second_check_reopens_the_pack_and_finds_the_same(audit, faulty, monkeypatch, tmp_path):
    first = onsight.check(faulty, cache_folder=str(tmp_path), quick=True, reporter=QUIET)
    again = onsight.check(faulty, cache_folder=str(tmp_path), quick=True, reporter=QUIET)
    assert again.dataset.pack.was_cached
    assert not first.dataset.pack.was_cached
    assert [finding.facts() for finding in again.findings] == [
        finding.facts() for finding in first.findings
    ]


def test_training_at_the_same_size_does_not_decode_again(faulty, tmp_path):
    cache = str(tmp_path / "cache")
    onsight.check(faulty, image_size="32", cache_folder=cache, quick=True, reporter=QUIET)
    lines = []
    reporter = SilentReporter()
    reporter.say, reporter.verbose = lines.append, True
    onsight.train(
        faulty,
        out=tmp_path / "run",
        epochs=1,
        model="compact",
        image_size="32",
        cache_folder=cache,
        reporter=reporter,
    )
    assert any("reopened from the cache" in line for line in lines)


def test_the_users_files_are_not_modified(audit, faulty):
    facts = {path: path.stat().st_mtime_ns for path in faulty.rglob("*")}
    onsight.check(faulty, quick=True, reporter=QUIET)
    assert facts == {path: path.stat().st_mtime_ns for path in faulty.rglob("*")}


def test_files_are_written_and_ids_ignored(audit, tmp_path):
    page = audit.save(tmp_path / "out")
    with open(tmp_path / "out" / "check.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(audit.findings)
    assert page.read_text().count("<img") >= 8
    assert "data:image" in page.read_text()
    kept = [row for row in rows if row["kind"] in ("identical", "unusable")]
    with open(tmp_path / "ignored.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(kept)
    data = audit.dataset.source.root
    again = onsight.check(data, quick=True, ignore=tmp_path / "ignored.csv", reporter=QUIET)
    assert again.ignored == 2
    assert not again.of("unusable")
    assert not {row["id"] for row in kept} & {finding.id for finding in again.findings}


def test_a_list_without_ids_cannot_be_ignored(faulty, tmp_path):
    (tmp_path / "list.csv").write_text("path\nx\n")
    with pytest.raises(DataError, match="no column id"):
        onsight.check(faulty, ignore=tmp_path / "list.csv", reporter=QUIET)
    with pytest.raises(DataError, match="/dev/zero cannot be read: not a regular file"):
        onsight.check(faulty, ignore="/dev/zero", reporter=QUIET)


def test_the_clean_manifest_has_neither_copies_nor_contradictions(audit, tmp_path):
    line = write_clean_manifest(audit, tmp_path / "clean.csv")
    index = find_source(str(tmp_path / "clean.csv")).index
    names = {Path(locator).name for locator in index.locators}
    assert len(index) == 87 - 2 - 2
    assert not {"broken.png", "same-two-labels.png"} & names
    assert "wrong-label.png" in names
    assert line.endswith("excluded: 1 unusable, 2 under two labels and 2 copies")


def test_a_manifest_that_exists_is_left_as_it_is(audit, tmp_path):
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(OutputError, match="left as it is"):
        write_clean_manifest(audit, tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "mine"


def run_command(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("groups", "code"),
    [("", 0), ("unusable", 1), ("duplicates,classes", 1), ("leakage", 0), ("leaks", 2)],
)
def test_fail_on_sets_the_exit_code(faulty, tmp_path, capsys, groups, code):
    assert run_command("check", faulty, "--quick", "--out", tmp_path, "--fail-on", groups) == code
    printed = capsys.readouterr()
    if code == 2:
        assert "Did you mean leakage" in printed.err
    else:
        assert "Identical images: 1\n" in printed.out  # and not how many of them are identical
        assert str(tmp_path / "check.html") in printed.out
        assert (f"next: onsight train {faulty}\n" in printed.out) == (code == 0)


def test_the_next_command_reads_the_same_images(bars, tmp_path, capsys):
    pattern = "([a-z]+)/[0-9]+"
    words = ("--quick", "--out", tmp_path, "--label-from", pattern)
    assert run_command("check", bars, *words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(last) == ["next:", "onsight", "train", str(bars), "--label-from", pattern]


def test_json_has_every_finding(faulty, tmp_path, capsys):
    assert run_command("check", faulty, "--quick", "--out", tmp_path, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["counts"]["unusable"] == 1
    assert {finding["kind"] for finding in facts["findings"]} >= {
        "unusable",
        "identical",
        "quality",
    }


def test_files_that_no_check_wrote_are_not_replaced(faulty, tmp_path, capsys):
    (tmp_path / "check.html").write_text("mine")
    assert run_command("check", faulty, "--quick", "--out", tmp_path) == 2
    assert "left as it is" in capsys.readouterr().err
    assert (tmp_path / "check.html").read_text() == "mine"


def test_a_page_escapes_names(tmp_path):
    data = images(tmp_path / "data", 12)
    shutil.copy(data / "across/00.png", data / "across/<script>alert(1)<script>.png")
    page = onsight.check(data, quick=True, reporter=QUIET).save(tmp_path / "out").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_names_like_formulas_are_marked_in_the_table_alone(tmp_path):
    data = images(tmp_path / "data", 12)
    (data / "across").rename(data / "=across")
    (data / "=across" / "@broken.png").write_bytes(b"")
    found = onsight.check(data, quick=True, reporter=QUIET)
    found.save(tmp_path / "out")
    with open(tmp_path / "out" / "check.csv") as file:
        (row,) = [row for row in csv.DictReader(file) if row["kind"] == "unusable"]
    (exact,) = [finding for finding in found.facts()["findings"] if finding["kind"] == "unusable"]
    assert (row["path"], exact["path"]) == ("./=across/@broken.png", "=across/@broken.png")
    write_clean_manifest(found, tmp_path / "clean.csv")
    assert set(find_source(str(tmp_path / "clean.csv")).index.classes) == {"=across", "down"}


def test_arrays_can_be_checked():
    images = np.stack([np.asarray(image("across", number)) for number in range(24)])
    images[5] = images[4]
    found = onsight.check((images, ["a", "b"] * 12), quick=True, reporter=QUIET)
    assert len(found.of("two-labels")) == 1


def with_leaks(folder: Path) -> Path:
    """A given split, and copies of two test images in its training part."""
    for number in range(30):
        place = folder / ("test" if number % 3 == 0 else "train") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        image("down", number).save(place / f"{number}.png")
    image("down", 3).resize((50, 50)).save(folder / "train/b/near.png")
    shutil.copy(folder / "test/a/0.png", folder / "train/a/same.png")
    return folder


def test_a_split_that_came_with_the_data_is_searched_for_leaks(tmp_path):
    found = onsight.check(with_leaks(tmp_path / "data"), quick=True, reporter=QUIET)
    assert {finding.description.partition(";")[0] for finding in found.of("leakage")} == {
        "identical",
        "near-duplicate, resized or re-encoded",
    }
    assert found.failed_groups(["leakage", "unusable"]) == ["leakage"]


def test_without_cleanlab_everything_else_is_checked(faulty, monkeypatch):
    monkeypatch.setattr(check_module, "is_installed", lambda name: False)
    found = onsight.check(faulty, reporter=QUIET)
    assert found.of("identical")
    assert not found.of("label")
    assert found.notes == (
        f"labels were not checked: that needs cleanlab: {install_command('check')}",
    )


def test_nothing_is_written_inside_the_data(faulty, monkeypatch, capsys):
    assert run_command("check", faulty, "--out", faulty / "checks") == 2
    monkeypatch.chdir(faulty)
    assert run_command("check", ".") == 2
    assert capsys.readouterr().err.count("inside the data") == 2
    assert not (faulty / "checks").exists()


def test_a_folder_and_its_archive_are_checked_side_by_side(tmp_path, monkeypatch, capsys):
    images(tmp_path / "data", count=3)
    shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert run_command("check", "data", "--quick") == 0
    assert run_command("check", "data.zip", "--quick") == 0
    assert {path.name for path in Path("checks").iterdir()} == {"data", "data.zip"}


def test_each_copy_is_paired_with_the_one_that_is_used(tmp_path):
    folder = with_leaks(tmp_path / "data")
    shutil.copy(folder / "train/a/same.png", folder / "train/a/again.png")
    found = onsight.check(folder, quick=True, reporter=QUIET)
    named = paths(found, "leakage", "identical")
    assert named == {("test/a/0.png", "train/a/same.png"), ("test/a/0.png", "train/a/again.png")}
    assert not found.of("identical")


def test_a_class_of_nothing_but_copies_is_rare(tmp_path):
    data = images(tmp_path / "data", 24)
    (data / "same").mkdir()
    for number in range(3):
        shutil.copy(data / "across/03.png", data / f"same/{number}.png")
    found = onsight.check(data, quick=True, reporter=QUIET)
    (rare,) = found.of("classes")
    text = "rare: 1 different image, 24 times fewer than the largest class"
    assert rare.description == text
    assert f"    same: {text}" in found.lines()
