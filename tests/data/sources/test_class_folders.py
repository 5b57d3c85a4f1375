"""Oracle: hand-made lists of paths with the classes and splits that a reader would expect."""

import pytest

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION, Index, Row
from onsight.data.sources.folder import arrange
from onsight.errors import DataError


def test_first_folder_is_the_class_however_deep_the_image_is():
    rows, places, problems = arrange(["cat/1.jpg", "dog/big/brown/2.jpg"], "here")
    assert rows == [
        Row("cat/1.jpg", "cat", UNSPLIT),
        Row("dog/big/brown/2.jpg", "dog", UNSPLIT),
    ]
    assert places == [0, 1]
    assert problems == []


def test_split_words_in_any_spelling_and_case():
    words = {
        "train": TRAIN, "Training": TRAIN, "val": VALIDATION, "VALID": VALIDATION,
        "validation": VALIDATION, "test": TEST, "testing": TEST,
    }  # fmt: skip
    rows, _, _ = arrange([f"{word}/cat/1.jpg" for word in words], "here")
    assert [(row.label, row.split) for row in rows] == [("cat", split) for split in words.values()]


def test_splits_without_train():
    rows, _, _ = arrange(["test/cat/1.jpg", "val/dog/1.jpg"], "here")
    assert [(row.label, row.split) for row in rows] == [("cat", TEST), ("dog", VALIDATION)]


@pytest.mark.parametrize("wrapper", ["", "kg/"])
@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["Train/cat/1.jpg", "test/cat/2.jpg", "extra/3.jpg"], "Train, test and extra"),
        (["train/cat/1.jpg", "eval/cat/2.jpg"], "train and eval"),
        (["train/list.txt", "train/cat/1.jpg", "train/dog/2.jpg", "raw/3.jpg"], "train and raw"),
        (["train/cat/1.jpg", "eval/cat/2.jpg", "raw/3.jpg"], "train, eval and raw"),
        (["test_set/cat/1.jpg", "training_set/cat/2.jpg"], "test_set and training_set"),
    ],
)
def test_folders_that_seem_to_be_splits_are_refused(wrapper, paths, message):
    paths = [f"{wrapper}{path}" for path in paths]
    with pytest.raises(DataError, match=f"here has the folders {message}. If they are splits"):
        arrange([*paths, "LICENSE"], "here", strip_top=True)


@pytest.mark.parametrize(
    "paths",
    [
        ["train/1.jpg", "test/2.jpg", "bus/front/3.jpg"],
        ["train/1.jpg", "train/old/2.jpg", "bus/old/3.jpg"],
        ["train/video1/1.jpg", "bus/video2/2.jpg", "ship/video3/3.jpg"],
        ["test/1.jpg", "control/2.jpg"],
        ["crash test/1.jpg", "road test/2.jpg"],
    ],
)
def test_classes_may_be_named_like_splits(paths):
    rows, _, _ = arrange(paths, "here")
    assert [row.label for row in rows] == [path.split("/")[0] for path in paths]
    assert {row.split for row in rows} == {UNSPLIT}


def test_test_folder_alone_is_a_class():
    rows, _, _ = arrange(["test/cat/1.jpg"], "here")
    assert rows == [Row("test/cat/1.jpg", "test", UNSPLIT)]


def test_files_outside_class_folders_are_problems_with_their_places_skipped():
    paths = ["README.md", "train/cat/1.jpg", "train/list.txt", "test/cat/2.jpg"]
    rows, places, problems = arrange(paths, "here")
    assert [row.locator for row in rows] == [paths[1], paths[3]]
    assert places == [1, 3]
    assert [problem.path for problem in problems] == [paths[0], paths[2]]
    assert {problem[1:] for problem in problems} == {("scan", "not inside a class folder")}


def test_every_kind_of_file_in_a_class_folder_is_a_row():
    rows, _, problems = arrange(["cat/notes.txt", "cat/Thumbs.db"], "here")
    assert len(rows) == 2
    assert problems == []


def test_one_wrapping_folder_of_an_archive_is_skipped():
    paths = ["pets/cat/1.jpg", "pets/dog/2.jpg", "pets/dog/3.jpg", "pets/README", "LICENSE"]
    rows, _, problems = arrange(paths, "here", strip_top=True)
    assert [row.label for row in rows] == ["cat", "dog", "dog"]
    assert [row.locator for row in rows] == paths[:3]
    assert [problem.path for problem in problems] == paths[3:]


def test_wrapped_splits_are_found():
    rows, _, _ = arrange(["pets/train/cat/1.jpg", "pets/test/cat/2.jpg"], "here", strip_top=True)
    assert [(row.label, row.split) for row in rows] == [("cat", TRAIN), ("cat", TEST)]


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["cat/1.jpg", "cat/2.jpg", "cat/old/3.jpg"], ["cat"] * 3),  # mostly one part follows
        (["a/cat/1.jpg", "b/dog/2.jpg"], ["a", "b"]),  # two folders
    ],
)
def test_what_is_not_a_wrapper(paths, labels):
    rows, _, _ = arrange(paths, "here", strip_top=True)
    assert [row.label for row in rows] == labels


def test_split_word_is_not_a_wrapper():
    rows, _, _ = arrange(["Train/cat/1.jpg", "Train/dog/2.jpg"], "here", strip_top=True)
    assert [(row.label, row.split) for row in rows] == [("cat", TRAIN), ("dog", TRAIN)]


def test_folders_are_not_skipped_by_default():
    rows, _, _ = arrange(["pets/cat/1.jpg", "pets/dog/2.jpg"], "here")
    assert {row.label for row in rows} == {"pets"}


def test_unicode_spellings_of_a_name_are_one_class():
    rows, _, _ = arrange(["caf\u00e9/1.jpg", "cafe\u0301/2.jpg"], "here")
    assert Index.of(rows).classes == ("caf\u00e9",)


def test_folder_names_that_are_not_utf8_are_printable_and_distinct():
    rows, _, _ = arrange(["caf\udce9/1.jpg", "caf\udce8/2.jpg"], "here")
    assert [row.label for row in rows] == ["caf\\xe9", "caf\\xe8"]
    assert rows[0].locator == "caf\udce9/1.jpg"


def test_folders_that_read_the_same_are_refused():
    with pytest.raises(DataError, match=r"two class folders that read caf\\xe9; rename one"):
        arrange(["caf\udce9/1.jpg", "caf\\xe9/2.jpg"], "here")
    arrange(["train/caf\udce9/1.jpg", "test/caf\udce9/2.jpg"], "here")


def test_no_class_folder_is_an_error_that_shows_the_layout():
    with pytest.raises(DataError, match=r"none of the 2 files in /data is .*\n(.*\n)+.*pets/cat"):
        arrange(["1.jpg", "2.jpg"], "/data")
