"""Images whose pixels say where they are; each box must give exactly its part."""

import json
import os

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.data.index import TEST, TRAIN, UNSPLIT
from onsight.data.sources.boxes import Box, crop
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import DataError, ImageError

HEIGHT, WIDTH = 30, 40
BOXES = [("cat", 2, 3, 10, 8), ("dog", 20, 5, 12, 20), ("cat", 0, 0, 40, 30)]  # x, y, w, h


def pixels_of(number):
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([x, y, np.full_like(x, number)], axis=2).astype(np.uint8)


def write_image(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_of(number)).save(path)


def coco_of(names):
    """Every image has all boxes."""
    labels = {"cat": 7, "dog": 9}
    return {
        "categories": [{"id": number, "name": name} for name, number in labels.items()],
        "images": [
            {"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT}
            for number, name in enumerate(names)
        ],
        "annotations": [
            {"id": 1, "image_id": number, "category_id": labels[label], "bbox": list(edges)}
            for number in range(len(names))
            for label, *edges in BOXES
        ],
    }


def write_coco(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def coco(tmp_path):
    """As Roboflow exports: an annotation file beside the images of each split."""
    for number, split in enumerate(("train", "test")):
        write_image(tmp_path / split / "1.png", number)
        write_coco(tmp_path / split / "_annotations.coco.json", coco_of(["1.png"]))
    return tmp_path


def pascal(name, size=(WIDTH, HEIGHT)):
    objects = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
        f"<xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object>"
        for label, x, y, w, h in BOXES
    )
    return (
        f"<annotation><filename>{name}</filename><size><width>{size[0]}</width>"
        f"<height>{size[1]}</height></size>{objects}</annotation>"
    )


def cvat(name, subset=""):
    boxes = "".join(
        f'<box label="{label}" xtl="{x}" ytl="{y}" xbr="{x + w}" ybr="{y + h}"/>'
        for label, x, y, w, h in BOXES
    )
    return (
        f'<image id="0" name="{name}" subset="{subset}" width="{WIDTH}" height="{HEIGHT}">'
        f"{boxes}</image>"
    )


def read_boxes(path):
    return find_source(str(path), ReadOptions(crop_boxes=True))


def labels_of(source):
    return [source.index.classes[label] for label in source.index.labels]


def assert_boxes(source, row, number):
    """Three rows from one on are the boxes of the image of a number."""
    for place, (label, x, y, width, height) in enumerate(BOXES, row):
        expected = pixels_of(number)[y : y + height, x : x + width]
        assert np.array_equal(source.read(place), expected)
        assert labels_of(source)[place] == label


def test_coco_boxes_of_both_splits(coco):
    source = read_boxes(coco)
    assert source.kind == "COCO"
    assert list(source.index.locators) == [
        f"{split}/1.png#{number}" for split in ("test", "train") for number in (1, 2, 3)
    ]
    assert source.index.splits.tolist() == [TEST] * 3 + [TRAIN] * 3
    assert_boxes(source, 0, 1)
    assert_boxes(source, 3, 0)
    assert list(source.groups) == ["test/1.png"] * 3 + ["train/1.png"] * 3
    assert "boxes of COCO annotations in 2 images" in source.description


def test_a_coco_file_alone(coco):
    source = read_boxes(coco / "train" / "_annotations.coco.json")
    assert list(source.index.locators) == ["1.png#1", "1.png#2", "1.png#3"]
    assert_boxes(source, 0, 0)


def test_images_without_a_size_are_taken_as_they_are(tmp_path):
    content = coco_of(["1.png"])
    del content["images"][0]["height"]
    write_image(tmp_path / "1.png", 2)
    assert_boxes(read_boxes(write_coco(tmp_path / "boxes.json", content)), 0, 2)


def test_cocos_own_folders(tmp_path):
    """Other annotations of the same images lie beside the instances."""
    write_image(tmp_path / "train2017" / "1.png", 5)
    write_image(tmp_path / "val2017" / "1.png", 6)
    write_coco(tmp_path / "annotations/instances_train2017.json", coco_of(["train2017/1.png"]))
    write_coco(tmp_path / "annotations/person_keypoints_train2017.json", coco_of(["1.png"]))
    (tmp_path / "annotations" / "notes.json").write_text("{broken")
    source = read_boxes(tmp_path)
    assert source.index.splits.tolist() == [TRAIN] * 3
    assert_boxes(source, 0, 5)


def test_a_box_without_a_label_is_no_class(tmp_path):
    content = coco_of(["1.png"])
    content["categories"][0]["name"] = " "
    write_image(tmp_path / "1.png", 1)
    source = read_boxes(write_coco(tmp_path / "boxes.json", content))
    assert source.index.classes == ("dog",)
    assert [problem.reason for problem in source.problems] == ["a box without a label"] * 2


def test_unusable_coco_boxes_are_problems(tmp_path):
    content = coco_of(["1.png", "gone.png"])
    content["annotations"][0]["iscrowd"] = 1
    write_image(tmp_path / "1.png", 1)
    source = read_boxes(write_coco(tmp_path / "boxes.json", content))
    assert len(source.index) == 2
    assert sorted((problem.path, problem.reason.split(",")[0]) for problem in source.problems) == [
        ("1.png", "box 1: marks a crowd"),
        ("gone.png", "annotated"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": 0, "category_id": 7}]}, "KeyError: 'bbox'"),
        ({"annotations": [{"image_id": 4}]}, "annotation None has the unknown image_id 4"),
        (
            {"annotations": [{"id": 3, "image_id": 0, "category_id": 8}]},
            "annotation 3 has the unknown category_id 8",
        ),
        ({"images": [{"id": 0, "file_name": name} for name in "ab"]}, "several images have the id"),
        ({"categories": [{"id": 7, "name": name} for name in "ab"]}, "categories have the id 7"),
        ({"images": 3}, "not a COCO file of boxes"),
        ({"annotations": []}, "has no box that can be used"),
        (
            {"annotations": [{"image_id": 0, "category_id": 7, "bbox": [0, 0, 1, float("nan")]}]},
            "nan is not a coordinate",
        ),
        (
            {"annotations": [{"image_id": 0, "category_id": 7, "bbox": [1e308, 0, 1e308, 1]}]},
            "inf is not a coordinate",
        ),
        ({"images": [{"id": 0, "file_name": "1.png", "height": 1e999, "width": 1}]}, "Overflow"),
        ({"images": [{"id": 0, "file_name": "1.png", "height": 10**400}]}, "height has over 308"),
        ({"images": [{"id": 0, "file_name": "1\0.png"}]}, "file_name has a NUL"),
        ({"categories": [{"id": 7, "name": "\ud800"}]}, "name has a lone surrogate"),
    ],
)
def test_damaged_coco_files(tmp_path, change, message):
    write_image(tmp_path / "1.png", 1)
    with pytest.raises(DataError, match=message):
        read_boxes(write_coco(tmp_path / "boxes.json", coco_of(["1.png"]) | change))


def test_pascal_boxes_with_lists(tmp_path):
    for number, name in enumerate(("a", "b")):
        write_image(tmp_path / "JPEGImages" / f"{name}.png", number)
        (tmp_path / "Annotations").mkdir(exist_ok=True)
        (tmp_path / "Annotations" / f"{name}.xml").write_text(pascal(f"{name}.png"))
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "test.txt").write_text("b\n")
    source = read_boxes(tmp_path)
    assert source.kind == "Pascal VOC"
    assert source.index.splits.tolist() == [UNSPLIT] * 3 + [TEST] * 3
    assert_boxes(source, 0, 0)
    assert_boxes(source, 3, 1)


@pytest.mark.parametrize("style", ["COCO", "CVAT"])
def test_boxes_of_a_missing_image_are_not_those_of_another_one(tmp_path, style):
    names = ["b2/0.png", "b3/1.png"]
    for name in ("b1/0.png", "b3/1.png"):
        write_image(tmp_path / name, 0)
    if style == "COCO":
        write_coco(tmp_path / "boxes.json", coco_of(names))
    else:
        images = "".join(map(cvat, names))
        (tmp_path / "boxes.xml").write_text(f"<annotations>{images}</annotations>")
    source = read_boxes(tmp_path)
    assert {box.partition("#")[0] for box in source.index.locators} == {"b3/1.png"}
    (problem,) = source.problems
    assert problem.path == "b2/0.png"
    assert "no such file; b1/0.png has its name" in problem.reason


def test_pascal_boxes_belong_to_the_image_beside_them(tmp_path):
    write_image(tmp_path / "a" / "0.png", 0)
    write_image(tmp_path / "b" / "1.png", 1)
    for name in ("a/0", "b/0", "b/1"):
        (tmp_path / name).with_suffix(".xml").write_text(pascal(name[2:] + ".png"))
    source = read_boxes(tmp_path)
    assert len(source.index) == 6
    assert [problem.path for problem in source.problems] == ["0.png"]


def test_cvat_boxes(tmp_path):
    write_image(tmp_path / "set" / "images" / "1.png", 4)
    file = tmp_path / "set" / "annotations.xml"
    file.write_text(f"<annotations>{cvat('1.png', 'Train')}{cvat('gone.png')}</annotations>")
    for path in (file, file.parent, tmp_path):
        source = read_boxes(path)
        assert source.kind == "CVAT"
        assert source.index.splits.tolist() == [TRAIN] * 3
        assert_boxes(source, 0, 4)
        assert [problem.path for problem in source.problems] == ["gone.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object/></annotation>", "has no <filename>"),
        (pascal("1.png").replace("<xmin>3<", "<xmin>x<"), "could not convert"),
        (pascal("1.png").replace("<xmin>3<", "<xmin>inf<"), "inf is not a coordinate"),
        (pascal("1.png").replace("bndbox", "polygon"), "an object has no bndbox"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "declares a document type"),
        ("<annotation>", "not valid XML"),
    ],
)
def test_damaged_pascal_files(tmp_path, text, message):
    write_image(tmp_path / "1.png", 0)
    (tmp_path / "1.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        read_boxes(tmp_path)


@pytest.mark.parametrize("place", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_list_of_a_split_that_is_no_file(tmp_path, place):
    write_image(tmp_path / "1.png", 0)
    (tmp_path / "1.xml").write_text(pascal("1.png"))
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    place(tmp_path / "ImageSets" / "Main" / "train.txt")
    with pytest.raises(DataError, match="train.txt cannot be read: not a regular file"):
        read_boxes(tmp_path)


def test_no_annotations(tmp_path):
    write_image(tmp_path / "cat" / "1.png", 0)
    with pytest.raises(DataError, match="has no annotations with boxes"):
        read_boxes(tmp_path)
    with pytest.raises(DataError, match="neither a folder nor a COCO or CVAT file"):
        read_boxes(tmp_path / "cat" / "1.png")
    with pytest.raises(DataError, match="does not exist"):
        read_boxes(tmp_path / "gone")


def test_a_folder_that_cannot_be_read_is_listed(coco, monkeypatch):
    """Permissions do not stop root, so the error is simulated."""
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("test"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    source = read_boxes(coco)
    assert len(source.index) == len(BOXES)
    assert source.problems == [("test", "scan", "cannot be read: Permission denied")]


def test_an_image_of_another_size_is_refused(tmp_path):
    write_image(tmp_path / "1.png", 0)
    (tmp_path / "1.xml").write_text(pascal("1.png", size=(HEIGHT, WIDTH)))
    source = read_boxes(tmp_path)
    with pytest.raises(ImageError, match="is 40x30, but its boxes were drawn on 30x40"):
        source.read(0)


@pytest.mark.parametrize(
    ("edges", "shape"),
    [((-5, -5, 3.2, 2.9), (3, 4)), ((35.5, 20, 99, 99), (10, 5)), ((1, 1, 2, 2), (1, 1))],
)
def test_a_box_is_cut_at_the_edges_of_its_image(edges, shape):
    assert crop(pixels_of(0), Box("", "", *edges)).shape[:2] == shape


@pytest.mark.parametrize("edges", [(5, 5, 5, 9), (40, 0, 50, 9), (9, 9, 3, 3)])
def test_an_empty_box_is_refused(edges):
    with pytest.raises(ImageError, match="empty or outside"):
        crop(pixels_of(0), Box("", "", *edges))


def test_annotations_among_images_of_one_class_are_pointed_out(tmp_path):
    for number in range(12):
        write_image(tmp_path / "images" / f"{number}.png", number)
    write_coco(tmp_path / "images" / "boxes.json", coco_of(["0.png"]))
    with pytest.raises(DataError, match="If images/boxes.json has boxes: --crop-boxes makes"):
        onsight.train(tmp_path, out=tmp_path.parent / "run", model="linear", device="cpu")


def test_images_with_boxes_are_decoded_as_those_to_predict(tmp_path):
    Image.new("RGBA", (WIDTH, HEIGHT), (200, 0, 0, 0)).save(tmp_path / "1.png")
    write_coco(tmp_path / "boxes.json", coco_of(["1.png"]))
    config = {"crop_boxes": True, "background": "#000102"}
    source = find_source(str(tmp_path), ReadOptions.from_config(config))
    assert source.read(0)[0, 0].tolist() == [0, 1, 2]
    config["pixel_limit_megapixels"] = 0.0001
    tight = find_source(str(tmp_path), ReadOptions.from_config(config))
    assert tight.fingerprint != source.fingerprint
    with pytest.raises(ImageError, match="over 0.0001 megapixels"):
        tight.read(0)


def test_boxes_are_evaluated_as_they_were_trained_on(tmp_path):
    data = tmp_path / "data"
    names = [f"{number}.png" for number in range(30)]
    data.mkdir()
    for number, name in enumerate(names):
        transparent = np.dstack([pixels_of(number), np.full((HEIGHT, WIDTH), 90, np.uint8)])
        Image.fromarray(transparent).save(data / name)
    write_coco(data / "boxes.json", coco_of(names))
    fields = {"epochs": 1, "model": "linear", "image_size": 8, "device": "cpu", "folds": 1}
    run = onsight.train(data, out=tmp_path / "run", crop_boxes=True, background="#000000", **fields)
    found = onsight.evaluate(run.path, data, crop_boxes=True)
    assert found["seen"] > 0
    assert (found["used"], found["accuracy"]) == (run.results["images"], run.results["accuracy"])


def test_boxes_are_trained_on_and_those_of_an_image_stay_together(tmp_path):
    names = [f"{number}.png" for number in range(30)]
    for number, name in enumerate(names):
        write_image(tmp_path / name, number)
    write_coco(tmp_path / "boxes.json", coco_of(names))
    fields = {"epochs": 1, "model": "linear", "image_size": 8, "device": "cpu"}
    run = onsight.train(tmp_path, out=tmp_path.parent / "run", crop_boxes=True, **fields)
    assert run.results["images"] > 0
    found = onsight.evaluate(run.path, tmp_path, crop_boxes=True)
    assert found["seen"] > 0
