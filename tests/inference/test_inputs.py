"""What can be given to predict, as one stream. Oracle: what the test has written, and glob."""

import csv
import io
import itertools
import json
import os
import tarfile
import tracemalloc
import zipfile
from glob import glob

import pytest

from onsight.data.sources.read_file import read_regular_file
from onsight.errors import DataError, ImageError
from onsight.inference.inputs import find_inputs, read_path_list

NAMES = ["b.png", "a/2.png", "a/10.jpg", "a/deep/er/1.png", "a/.hid/x.png", ".no.png", "c/[1].png"]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Files whose content is their name; the test is in their folder."""
    for name in NAMES:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


def names(*words):
    return [image.name for image in find_inputs(words)]


def contents(*words):
    return [image.read().decode() for image in find_inputs(words)]


def test_files_and_folders_come_in_order(tree):
    expected = ["./b.png", "./a/10.jpg", "./a/2.png", "./a/deep/er/1.png", "./c/[1].png"]
    assert names("b.png", ".") == ["b.png", *expected]
    assert contents("b.png", "a") == ["b.png", "a/10.jpg", "a/2.png", "a/deep/er/1.png"]


@pytest.mark.parametrize(
    "pattern",
    ["*.png", "**", "**/*.png", "a/**", "a/**/*.png", "**/deep/**/*.png", "*/*.[jp]*g", "**/**/1*"],
)
def test_patterns_match_as_globs_do(tree, pattern):
    expected = [path for path in glob(pattern, recursive=True) if os.path.isfile(path)]
    found = names(pattern)
    assert sorted(found) == sorted(set(expected))
    assert names(f"{tree}/{pattern}") == [f"{tree}/{path}" for path in found]


def test_a_pattern_gives_files_folder_by_folder(tree):
    assert names("**") == ["b.png", "a/10.jpg", "a/2.png", "a/deep/er/1.png", "c/[1].png"]


def test_a_pattern_of_links_that_lead_back_ends(tree):
    (tree / "a" / "loop").symlink_to(tree)
    assert len(names("**/*.png")) == 4


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tree):
    assert names("c/[1].png") == ["c/[1].png"]


def test_archives_give_their_members_in_order_and_then_their_problems(tree):
    order = ["z.png", "a/1.png", "../evil.png", "m/2.png"]
    with zipfile.ZipFile("all.zip", "w") as archive:
        for name in order:
            archive.writestr(name, name)
    with tarfile.open("all.tar.gz", "w:gz") as archive:
        for name in order:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    for archive in ("all.zip", "all.tar.gz"):
        *usable, evil = find_inputs([archive])
        assert [image.name for image in usable] == [
            f"{archive}/{n}" for n in order if ".." not in n
        ]
        assert [image.read().decode() for image in usable] == [n for n in order if ".." not in n]
        assert evil.name == f"{archive}/../evil.png"
        with pytest.raises(ImageError, match="leads out of the archive"):
            evil.read()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_manifests_need_no_labels_and_every_line_is_an_input(tree, kind):
    paths = ["a/2.png", "missing.png", "a/2.png", "b.png"]
    if kind == "csv":
        with open("list.csv", "w", newline="") as file:
            csv.writer(file).writerows([["id", "Path"], *enumerate(paths)])
    elif kind == "jsonl":
        with open("list.jsonl", "w") as file:
            file.writelines(
                json.dumps({"file_name": path, "split": "odd"}) + "\n" for path in paths
            )
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        write_table(pyarrow.table({"image": paths}), "list.parquet")
    assert names(f"list.{kind}") == paths
    assert names(f"{tree}/list.{kind}") == [f"{tree}/{path}" for path in paths]
    with pytest.raises(ImageError, match="No such file"):
        list(find_inputs([f"list.{kind}"]))[1].read()


def test_a_broken_manifest_is_refused_with_the_reason(tree):
    (tree / "list.csv").write_text("name,label\nb.png,b\n")
    with pytest.raises(DataError, match="no column of paths; it has: name, label"):
        names("list.csv")
    (tree / "list.csv").write_text("path,label\nb.png,b\nb.png\n")
    with pytest.raises(DataError, match="line 3: 1 cells"):
        names("list.csv")


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (b"a.png\nb c.png\r\n\nd.png", ["a.png", "b c.png", "d.png"]),
        (b"a\nb.png\0c.png\0", ["a\nb.png", "c.png"]),
        (b"c\xe9.png\n", [os.fsdecode(b"c\xe9.png")]),
        (b"", []),
        (b"x" * 4000 + b"\0y\0", ["x" * 4000, "y"]),
        (b"".join(b"%06d\n" % n for n in range(30_000)), [f"{n:06d}" for n in range(30_000)]),
        (b"".join(b"%06d\0" % n for n in range(30_000)), [f"{n:06d}" for n in range(30_000)]),
    ],
)
def test_a_list_of_paths_is_separated_by_nul_or_lines(listed, expected):
    assert list(read_path_list(io.BytesIO(listed))) == expected


def test_anything_but_a_list_of_paths_is_refused():
    with pytest.raises(DataError, match="not a list of paths"):
        list(read_path_list(io.BytesIO(b"x" * 200_000)))
    with pytest.raises(DataError, match=r"there is a NUL after b'a\.png"):
        list(read_path_list(io.BytesIO(b"a.png\n" * 5000 + b"a.png\0b.png\n")))


def test_inputs_that_cannot_be_opened_are_refused_at_once(tree):
    for words, message in (
        (["b.png", "b.pgn"], "b.pgn does not exist.* Did you mean b.png"),
        (["b.png", "--out"], "--out is no option here, and there is no file of that name"),
        (["-", "-"], "only once"),
        ([], "no input images found"),
    ):
        with pytest.raises(DataError, match=message):
            find_inputs(words)
    with pytest.raises(DataError, match=r"no file matches \*\*/\*.gif"):
        names("b.png", "**/*.gif")


def test_inputs_are_not_collected_in_memory(tree):
    paths = (b"tree/%07d.png\n" % number for number in range(200_000))

    class Pipe(io.RawIOBase):
        def read(self, size=-1):
            return b"".join(itertools.islice(paths, size // 17))

    tracemalloc.start()
    try:
        assert sum(1 for _ in read_path_list(Pipe())) == 200_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_cannot_be_read_has_its_reason(tree):
    os.mkfifo("pipe.png")
    (image,) = find_inputs(["pipe.png"])
    with pytest.raises(ImageError, match="not a regular file"):
        image.read()
    with pytest.raises(ImageError, match="No such file"):
        read_regular_file("missing.png")
    with pytest.raises(ImageError, match="no file can have this name"):
        read_regular_file("a\0b.png")


@pytest.mark.parametrize("inputs", [".", "**", "*/**/*.*"])
def test_a_folder_that_cannot_be_read_is_an_input_with_a_reason(tree, inputs, monkeypatch):
    """Permissions do not stop root, so the error is simulated."""
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).strip("./") == "a":
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    images = {image.name.strip("./"): image for image in find_inputs([inputs])}
    assert {*images} - {"b.png"} == {"a", "c/[1].png"}
    with pytest.raises(ImageError, match="cannot be read|not a regular file"):
        images["a"].read()


def test_a_link_to_itself_hides_no_files(tree):
    (tree / "a" / "self").symlink_to("self")
    assert names("a/*.jpg") == ["a/10.jpg"]
