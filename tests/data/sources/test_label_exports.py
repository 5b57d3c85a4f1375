"""Exports of Label Studio, CVAT and Roboflow whose labels are of whole images, written here."""

import json
import os

import pytest

from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import DataError


@pytest.fixture
def images(tmp_path):
    for name in ("a.png", "my cat.png", "sub/b.png", "other/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def choice(label, name="choice"):
    return {"type": "choices", "from_name": name, "value": {"choices": [label]}}


def task(address, *annotations, key="image"):
    return {
        "data": {key: address},
        "annotations": [{"result": list(results)} for results in annotations],
    }


def write(folder, content):
    (folder / "export.json").write_text(json.dumps(content))
    return folder / "export.json"


def read(path, **options):
    source = find_source(str(path), ReadOptions(**options))
    labels = [source.index.classes[label] for label in source.index.labels]
    return source, dict(zip(source.index.locators, labels, strict=True))


def test_images_are_found_wherever_the_export_says_they_were(images):
    tasks = [
        task("/data/upload/3/1a2b3c4d-a.png", [choice("cat")]),
        task("/data/local-files/?d=store/other/b.png", [choice("dog")], key="photo"),
        task("https://host.example/files/my%20cat.png", [choice("cat")], [choice("cat")]),
    ]
    source, labels = read(write(images, tasks))
    assert source.kind == "labelstudio"
    assert labels == {"a.png": "cat", "other/b.png": "dog", "my cat.png": "cat"}
    assert "Label Studio export" in source.description
    assert source.read(0) == b"a.png"


def test_tasks_that_cannot_be_used_are_listed(images):
    cancelled = task("a.png", [choice("dog")])
    cancelled["annotations"][0]["was_cancelled"] = True
    tasks = [
        task("a.png", [choice("cat")]),
        task("my cat.png", [choice("cat")], [choice("dog")]),
        task("sub/b.png"),
        task("gone.png", [choice("dog")]),
        cancelled | {"data": {"image": "other/b.png"}},
    ]
    source, labels = read(write(images, tasks))
    assert labels == {"a.png": "cat"}
    assert [(problem.path, problem.reason) for problem in source.problems] == [
        ("my cat.png", "listed under two labels: cat, dog"),
        ("my cat.png", "listed under two labels: cat, dog"),
        ("sub/b.png", "has no label"),
        ("gone.png", f"annotated, but there is no such file below {images}"),
        ("other/b.png", "has no label"),
    ]


def test_the_short_export(images):
    tasks = [
        {"id": 1, "image": "/data/upload/1/a.png", "choice": "cat", "annotator": "x"},
        {"id": 2, "image": "/data/upload/1/sub/b.png", "choice": {"choices": ["dog", "cat"]}},
    ]
    source, labels = read(write(images, tasks))
    assert labels == {"a.png": "cat"}
    assert [problem.reason for problem in source.problems] == [
        "listed under two labels: cat, dog"
    ] * 2


def test_odd_tasks_are_listed_too(images):
    tasks = [
        task("a.png", [choice("cat")]),
        task("http://[half/b.png", [choice(3)]),
        {"data": ["sub/b.png"], "annotations": [{"result": [choice("dog")]}]},
    ]
    source, labels = read(write(images, tasks))
    assert labels == {"a.png": "cat"}
    assert sorted(problem.path for problem in source.problems) == ["", "http://[half/b.png"]


def test_several_choices_need_a_label(images):
    tasks = [task("a.png", [choice("cat", "species"), choice("old", "age")])]
    with pytest.raises(DataError, match="the choices age and species; name one with --label"):
        read(write(images, tasks))
    assert read(write(images, tasks), label="age")[1] == {"a.png": "old"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": [], "annotations": [], "categories": []}, "COCO file of boxes: --crop-boxes"),
        ({"a": 1}, "neither an export of Label Studio nor"),
        ([{"annotations": [{"result": 3}]}], "is not an export of Label Studio: TypeError"),
        ([{"annotations": 3}], "is not an export of Label Studio"),
        ([task("a.png")], "none of its images is labelled"),
        ([], "none of its images is labelled"),
    ],
)
def test_other_json(images, content, message):
    with pytest.raises(DataError, match=message):
        read(write(images, content))


def test_invalid_json(images):
    (images / "export.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="is not valid JSON"):
        read(images / "export.json")
    (images / "export.json").write_bytes(b'["\xff"]')
    with pytest.raises(DataError, match="is not valid JSON"):
        read(images / "export.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([task("a\0.png", [choice("cat")])], "image has a NUL"),
        ([task("a.png", [choice("\ud800")])], "choices has a lone surrogate"),
        ([task("a.png", [choice("cat")]) | {"id": 10**400}], "id has over 308 digits"),
    ],
)
def test_text_and_numbers_that_no_file_can_have(images, content, message):
    with pytest.raises(DataError, match=f"export.json .*{message}"):
        read(write(images, content))


def test_cvat_tags(images):
    file = images / "annotations.xml"
    file.write_text(
        "<annotations><image name='a.png' subset='test'><tag label='cat'/></image>"
        "<image name='sub/b.png'><tag label='dog'/></image>"
        "<image name='my cat.png'/></annotations>"
    )
    source, labels = read(file)
    assert source.kind == "cvat"
    assert labels == {"a.png": "cat", "sub/b.png": "dog"}
    assert source.index.splits.tolist() == [TEST, UNSPLIT]
    assert [(problem.path, problem.reason) for problem in source.problems] == [
        ("my cat.png", "has no label")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "<annotations><image name='a'><box/></image></annotations>",
            "has boxes but no tags: --crop",
        ),
        ("<annotation><filename>a</filename></annotation>", "give its folder and --crop-boxes"),
        ("<annotations/>", "is not CVAT's XML for images"),
    ],
)
def test_other_xml(images, text, message):
    (images / "annotations.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        read(images / "annotations.xml")


@pytest.mark.parametrize(
    "moved",
    [
        {"sub/b.png": "sub/b.png", "gone/a.png": None},
        {"/home/me/sub/b.png": "sub/b.png", "/home/me/gone/a.png": None},
        {"C:\\sub\\b.png": "sub/b.png", "C:\\gone\\a.png": None},
        {"/mine/sub/b.png": "sub/b.png", "/mine/a.png": "a.png"},
        {"mine/a.png": "a.png", "mine/my cat.png": "my cat.png"},
        {"https://a/mine/a.png": "a.png", "https://b/yours/my cat.png": "my cat.png"},
    ],
)
def test_files_may_have_been_moved_but_all_alike(images, moved):
    source, labels = read(write(images, [task(name, [choice("cat")]) for name in moved]))
    assert list(labels) == [file for file in moved.values() if file]
    assert [(problem.path, problem.reason[:45]) for problem in source.problems] == [
        (name, "annotated, but there is no such file; a.png h")
        for name, file in moved.items()
        if not file
    ]


def test_folders_of_an_export_may_lie_in_another_folder(images):
    (images / "images" / "sub").mkdir(parents=True)
    for name in ("1.png", "sub/2.png"):
        (images / "images" / name).write_bytes(name.encode())
    _, labels = read(
        write(images, [task(name, [choice("cat")]) for name in ("1.png", "sub/2.png")])
    )
    assert list(labels) == ["images/1.png", "images/sub/2.png"]


def test_several_files_of_a_name(images):
    source, labels = read(
        write(images, [task("a.png", [choice("x")]), task("b.png", [choice("y")])])
    )
    assert labels == {"a.png": "x"}
    assert source.problems[0].path == "b.png"


def write_classes(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "_classes.csv").write_text(text)


def test_tables_of_roboflow_give_label_and_split(tmp_path):
    for name in ("train/a.jpg", "train/b.jpg", "valid/a.jpg", "train/both.jpg", "train/none.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    header = "filename, Cat, Dog\n"
    lines = "a.jpg, 1, 0\nb.jpg, 0, 1\nboth.jpg, 1, 1\nnone.jpg, 0, 0\ngone.jpg, 1, 0\n"
    write_classes(tmp_path / "train", header + lines)
    write_classes(tmp_path / "valid", header + "a.jpg, 0, 1\n")
    source, labels = read(tmp_path)
    assert source.kind == "roboflow"
    assert labels == {"train/a.jpg": "Cat", "train/b.jpg": "Dog", "valid/a.jpg": "Dog"}
    splits = dict(zip(source.index.locators, source.index.splits, strict=True))
    assert splits == {"train/a.jpg": TRAIN, "train/b.jpg": TRAIN, "valid/a.jpg": VALIDATION}
    assert source.read(source.index.locators.index("valid/a.jpg")) == b"valid/a.jpg"
    assert {(problem.path, problem.reason) for problem in source.problems} == {
        ("train/both.jpg", "listed under two labels: Cat, Dog"),
        ("train/none.jpg", "has no label"),
        ("train/gone.jpg", "listed, but there is no such file"),
    }


def test_another_label_is_another_fingerprint(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"a")
    write_classes(tmp_path, "filename,Cat,Dog\na.jpg,1,0\n")
    before = read(tmp_path)[0].fingerprint
    write_classes(tmp_path, "filename,Cat,Dog\na.jpg,0,1\n")
    assert read(tmp_path)[0].fingerprint != before


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("image,Cat\na.jpg,1\n", "does not begin with filename"),
        ("filename\na.jpg\n", "does not begin with filename"),
        ("filename,Cat,Dog\na.jpg,1\n", "line 2: one 0 or 1 for each class"),
        ("filename,Cat\na.jpg,0.7\n", "line 2: one 0 or 1 for each class"),
        ("", "does not begin with filename"),
        ("filename,Cat\na\0.jpg,1\n", "line 2: has a NUL"),
    ],
)
def test_a_table_of_another_form_is_one_message(tmp_path, text, fault):
    write_classes(tmp_path, text)
    with pytest.raises(DataError, match=fault):
        read(tmp_path)


@pytest.mark.parametrize("place", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_table_that_is_no_file(tmp_path, place):
    place(tmp_path / "_classes.csv")
    with pytest.raises(DataError, match="_classes.csv cannot be read: not a regular file"):
        read(tmp_path)


def test_a_table_of_foreign_text_is_named_with_its_line(tmp_path):
    (tmp_path / "_classes.csv").write_bytes(b"filename,Cat\n\xe4.jpg,1\n")
    with pytest.raises(DataError, match=r"_classes.csv, line 2: byte 0xe4"):
        read(tmp_path)
