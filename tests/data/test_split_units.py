"""Images that belong together stay on one side, whatever else is there."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.config import make_config
from onsight.data import split_units
from onsight.data.dataset import open_dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.sources.find import find_source
from onsight.data.split import assign_splits_by_time
from onsight.errors import ConfigError, DataError
from onsight.report.console import SilentReporter


def noise(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    return Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR)


def images(folder: Path, count: int = 200) -> Path:
    """Two classes; five images of each patient, of both classes."""
    for number in range(count):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        noise(number).save(place / f"p{number // 5:02d}-{number:03d}.png")
    return folder


def manifest(folder: Path, column: str, value) -> Path:
    """A list of the same images with another column. value: of an image's number."""
    images(folder)
    rows = [f"path,label,{column}"]
    for path in sorted(folder.rglob("*.png")):
        number = int(path.stem.partition("-")[2])
        rows.append(f"{path.relative_to(folder)},{path.parent.name},{value(number)}")
    (folder / "list.csv").write_text("\n".join(rows))
    return folder / "list.csv"


def dataset_of(data: Path, cache: Path | None = None, **fields):
    return open_dataset(find_source(str(data)), make_config(fields), (16, 16), cache, 1)


def sides(dataset) -> dict[str, set[int]]:
    """The splits in which each patient is."""
    found: dict[str, set[int]] = {}
    for locator, split in zip(dataset.pack.index.locators, dataset.splits.tolist(), strict=True):
        found.setdefault(Path(locator).stem.partition("-")[0], set()).add(split)
    return found


def test_without_groups_patients_are_divided(tmp_path):
    found = sides(dataset_of(images(tmp_path / "data")))
    assert sum(len(splits) > 1 for splits in found.values()) > 10


@pytest.mark.parametrize("pattern", [r"p[0-9]+", r"/p([0-9]+)-"])
def test_no_group_is_divided(tmp_path, pattern):
    dataset = dataset_of(images(tmp_path / "data"), group_by=pattern, folds="1")
    assert {len(splits) for splits in sides(dataset).values()} == {1}
    assert {TRAIN, VALIDATION, TEST} <= set(dataset.splits.tolist())
    assert "40 groups" in dataset.units.basis.reason


def test_a_column_of_groups_does_the_same(tmp_path):
    data = manifest(tmp_path / "data", "group", lambda number: f"patient {number // 5}")
    dataset = dataset_of(data, folds="1")
    assert {len(splits) for splits in sides(dataset).values()} == {1}


def test_no_group_is_divided_by_folds(tmp_path):
    dataset = dataset_of(images(tmp_path / "data"), group_by="p[0-9]+", folds="4")
    folds: dict[str, set[int]] = {}
    for locator, fold in zip(dataset.pack.index.locators, dataset.fold.tolist(), strict=True):
        folds.setdefault(Path(locator).stem.partition("-")[0], set()).add(fold)
    assert {len(numbers) for numbers in folds.values()} == {1}
    assert {next(iter(numbers)) for numbers in folds.values()} == {1, 2, 3, 4}


def test_more_images_of_a_group_do_not_move_it(tmp_path):
    data = images(tmp_path / "data")
    before = sides(dataset_of(data, group_by="p[0-9]+", folds="1"))
    for number in range(40):
        noise(1000 + number).save(data / "a" / f"p{number:02d}-x{number}.png")
    after = sides(dataset_of(data, group_by="p[0-9]+", folds="1"))
    assert before == after


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "--group-by .* is not a regular expression"),
        ("zebra", "matches nothing"),
    ],
)
def test_a_pattern_that_cannot_be_used(tmp_path, pattern, said):
    with pytest.raises(ConfigError, match=said):
        dataset_of(images(tmp_path / "data", 20), group_by=pattern)


def test_a_given_split_that_divides_a_group_is_refused(tmp_path):
    folder = tmp_path / "data"
    for number in range(40):
        place = folder / ("train" if number % 2 else "test") / "ab"[number // 20]
        place.mkdir(parents=True, exist_ok=True)
        noise(number).save(place / f"p{number // 4}-{number}.png")
    with pytest.raises(DataError, match=r"group 'p\d' is in"):
        dataset_of(folder, group_by="p[0-9]+")


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_given_split_of_a_part_of_a_group_is_refused(tmp_path, held_out):
    data = manifest(tmp_path / "data", "split", lambda number: "" if number else held_out)
    with pytest.raises(DataError, match=r"group 'p00' is in both .* images without one count as"):
        dataset_of(data, group_by="p[0-9]+")


def test_a_given_split_of_whole_groups_is_kept(tmp_path):
    marks = {0: "test", 1: "train"}  # of the patients; images of the others have none
    data = manifest(tmp_path / "data", "split", lambda number: marks.get(number // 5, ""))
    dataset = dataset_of(data, group_by="p[0-9]+")
    assert {len(splits) for splits in sides(dataset).values()} == {1}
    assert int((dataset.splits == TEST).sum()) == 5


def test_too_few_groups_to_hold_any_out_are_pointed_out(tmp_path):
    data = manifest(tmp_path / "data", "group", lambda number: "all")
    dataset = dataset_of(data, folds="1")
    assert (dataset.splits == TRAIN).all()
    assert dataset_of(data, folds="auto").folds.value == 1
    assert (
        "only 1 part in 2 classes: identical images and the images of 1 group" in dataset.notes[0]
    )


@pytest.mark.parametrize("folds", ["1", "4"])
def test_parts_of_the_images_to_evaluate_on_are_counted_where_they_are_few(tmp_path, folds):
    data = images(tmp_path / "data")
    dataset = dataset_of(data, group_by="p[0-9]+", folds=folds)
    tested = 200 if folds == "4" else int((dataset.splits == TEST).sum())
    start = f"the {tested} images to evaluate on form only {tested // 5} parts: identical"
    assert [note.startswith(start) for note in dataset.notes] == [True]
    assert dataset_of(data, folds=folds).notes == []


def test_data_that_is_all_held_out_has_its_own_remedy(tmp_path):
    data = manifest(tmp_path / "data", "split", lambda number: "test")
    with pytest.raises(DataError, match="are test images; add training images, or take some out"):
        dataset_of(data)


def test_the_latest_are_tested(tmp_path):
    data = manifest(tmp_path / "data", "time", lambda number: f"2026-01-{1 + number // 10:02d}")
    dataset = dataset_of(data)
    days = {}
    for locator, split in zip(dataset.pack.index.locators, dataset.splits.tolist(), strict=True):
        days.setdefault(int(Path(locator).stem.partition("-")[2]) // 10, set()).add(split)
    assert {len(splits) for splits in days.values()} == {1}
    assert [next(iter(days[day])) for day in range(20)] == [TRAIN] * 16 + [VALIDATION] * 2 + [
        TEST
    ] * 2
    assert dataset.units.basis.value == "by time"
    assert dataset.folds.value == 1


def test_folds_of_times_are_refused(tmp_path):
    data = manifest(tmp_path / "data", "time", str)
    with pytest.raises(ConfigError, match="--folds 3 mixes"):
        dataset_of(data, folds="3")


@pytest.mark.parametrize("time", ["yesterday", "inf", "2026-13-01"])
def test_a_time_that_cannot_be_read_is_named_with_its_line(tmp_path, time):
    data = manifest(tmp_path / "data", "time", lambda number: time)
    with pytest.raises(DataError, match="line 2: the time is"):
        dataset_of(data)


def test_times_against_sorting():
    rng = np.random.default_rng(0)
    times = rng.permutation(100).astype(np.float64)
    splits = assign_splits_by_time(times, np.zeros(100, np.int8), 0.2, 0.1)
    order = splits[np.argsort(times)]
    assert order.tolist() == [TRAIN] * 70 + [VALIDATION] * 20 + [TEST] * 10


def test_a_given_test_split_stays_where_times_are_known():
    given = np.array([0, 0, 0, TEST], np.int8)
    splits = assign_splits_by_time(np.array([3.0, 2.0, 1.0, 0.0]), given, 0.25, 0.25)
    assert splits.tolist() == [VALIDATION, TRAIN, TRAIN, TEST]


def with_copies(folder: Path) -> Path:
    """Forty images, and an enlarged copy of each."""
    images(folder, 40)
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image:
            image.resize((48, 48), Image.Resampling.BILINEAR).save(
                path.with_name(f"q{path.name[1:]}")
            )
    return folder


def divided(dataset) -> int:
    found: dict[str, set[int]] = {}
    for locator, split in zip(dataset.pack.index.locators, dataset.splits.tolist(), strict=True):
        found.setdefault(Path(locator).stem[1:], set()).add(split)
    return sum(len(splits) > 1 for splits in found.values())


def test_near_duplicates_stay_together_in_few_images_or_if_asked(tmp_path, monkeypatch):
    data, held_out = with_copies(tmp_path / "data"), {"test_fraction": 0.3, "folds": "1"}
    usual = dataset_of(data, **held_out)
    assert divided(usual) == 0
    assert usual.units.near_duplicates == 40
    assert "40 pairs of near-duplicates stay together" in usual.units.basis.reason
    apart = dataset_of(data, split_near_duplicates="apart", **held_out)
    assert divided(apart) > 5
    assert apart.units.near_duplicates is None

    monkeypatch.setattr(split_units, "MAX_SEARCHED", 79)
    many = dataset_of(data, **held_out)
    assert many.splits.tolist() == apart.splits.tolist()
    assert many.units.basis.reason == (
        "identical images stay together; near-duplicates may not: searching more than 79 images "
        "for them takes long (--split-near-duplicates)"
    )
    together = dataset_of(data, split_near_duplicates="together", **held_out)
    assert together.splits.tolist() == usual.splits.tolist()
    monkeypatch.setattr(split_units, "MAX_SEARCHED", 80)
    assert dataset_of(data, **held_out).splits.tolist() == usual.splits.tolist()


@pytest.mark.parametrize("limit", [10, 1000])
def test_neither_the_cache_nor_a_check_decides_the_split(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(split_units, "MAX_SEARCHED", limit)
    data, cache = with_copies(tmp_path / "data"), tmp_path / "cache"
    fair = dataset_of(data, test_fraction=0.3, folds="1")
    onsight.check(data, quick=True, cache_folder=str(cache), reporter=SilentReporter())
    after = dataset_of(data, cache, test_fraction=0.3, folds="1")
    assert after.splits.tolist() == fair.splits.tolist()


def test_images_that_nearly_all_look_alike_are_not_one_part(tmp_path):
    """The same scene again and again, with as little noise as a camera adds."""
    folder, rng = tmp_path / "data", np.random.default_rng(0)
    scene = np.asarray(noise(0), np.int64)
    for number in range(100):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = scene + rng.integers(-1, 2, scene.shape) if number % 4 else noise(1000 + number)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(place / f"{number}.png")
    usual = dataset_of(folder, folds="1")
    assert usual.units.basis.reason == (
        "identical images stay together; near-duplicates may not: 75 of 100 different images "
        "look alike (--split-near-duplicates)"
    )
    assert len(np.unique(usual.units.digests, axis=0)) == 100
    together = dataset_of(folder, folds="1", split_near_duplicates="together")
    assert len(np.unique(together.units.digests, axis=0)) == 26


def test_only_what_keeps_images_together_is_named(tmp_path):
    data = images(tmp_path / "data")
    units = dataset_of(data, split_near_duplicates="together").units
    assert units.basis.reason == "identical images stay together"


def test_a_near_duplicate_of_a_given_test_image_is_left_out_of_training(tmp_path):
    folder = tmp_path / "data"
    for number in range(40):
        place = folder / ("train" if number < 30 else "test") / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        noise(number).save(place / f"{number}.png")
    noise(35).resize((48, 48)).save(folder / "train" / "b" / "copy.png")
    dataset = dataset_of(folder, split_near_duplicates="together")
    (problem,) = dataset.problems
    assert problem.path == "train/b/copy.png"
    assert problem.reason.startswith("a near-duplicate of an image held out")
