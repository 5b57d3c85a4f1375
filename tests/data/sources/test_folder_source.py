"""Trees with known counts, including hostile ones that trip up other loaders."""

import os
import socket
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from onsight.data.sources import folder as folder_module
from onsight.data.sources import read_file
from onsight.data.sources.folder import is_hidden, read_folder
from onsight.errors import DataError, ImageError


def plant(root, *paths):
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"content of {path}".encode("utf-8", "surrogateescape"))


def reasons(source):
    return {problem.path: problem.reason for problem in source.problems}


def test_rows_labels_and_bytes(tmp_path):
    plant(tmp_path, "dog/2.png", "cat/1.png", "cat/deep/3.png")
    source = read_folder(tmp_path)
    assert list(source.index.locators) == ["cat/1.png", "cat/deep/3.png", "dog/2.png"]
    assert source.index.classes == ("cat", "dog")
    assert [source.read(row) for row in range(3)] == [
        f"content of {path}".encode() for path in source.index.locators
    ]
    assert source.description == "class folders, 2 classes, 3 files"


def test_splits_are_reported(tmp_path):
    plant(tmp_path, "train/cat/1.png", "test/cat/2.png", "train/dog/3.png")
    found = read_folder(tmp_path).description
    assert found == "class folders with train/test, 2 classes, 3 files"


def test_hidden_files_and_folders_are_counted_and_skipped(tmp_path):
    plant(tmp_path, "cat/1.png", "cat/._1.png", "cat/.ipynb_checkpoints/1.png",
          "__MACOSX/cat/1.png", ".git/HEAD")  # fmt: skip
    source = read_folder(tmp_path)
    assert list(source.index.locators) == ["cat/1.png"]
    assert source.problems == []
    assert "4 hidden entries skipped" in source.description


def test_empty_folders_are_noted(tmp_path):
    plant(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "yak").mkdir()
    (tmp_path / "dog" / "puppies").mkdir()
    source = read_folder(tmp_path)
    assert source.index.classes == ("cat", "dog")
    assert "2 empty folders (dog/puppies and yak)" in source.description


def test_hostile_tree_is_accounted_for_file_by_file(tmp_path):
    root = tmp_path / "tree"
    outside = tmp_path / "outside"
    plant(root, "cat/1.png", "cat/new\nline.png", "cat/\U0001f600.png", "caf\u00e9/1.png",
          "cafe\u0301/2.png", "cat/Case.png", "cat/case.png", "dog/page.jpg",
          "cat/dir named.png/inner.png", "cat/.ipynb_checkpoints/1.png", "loose.png",
          f"cat/{'x' * 251}.png")  # fmt: skip
    plant(outside, "far.png", "folder/4.png")
    (root / "cat/empty.png").touch()
    (root / "no images").mkdir()
    with open(os.fsencode(root) + b"/cat/\xff.png", "wb") as file:
        file.write(b"no UTF-8")
    (root / "cat/loop").symlink_to(root)
    (root / "cat/up").symlink_to(tmp_path)  # contains the root, so following it never helps
    (root / "cat/self").symlink_to(root / "cat/self")
    (root / "cat/dangling.png").symlink_to("nowhere.png")
    (root / "cat/again.png").symlink_to("1.png")
    (root / "cat/far.png").symlink_to(outside / "far.png")
    (root / "cat/linked folder").symlink_to(outside / "folder")
    (root / "dog/same linked folder").symlink_to(outside / "folder")
    (root / "dog/null.png").symlink_to("/dev/null")
    os.mkfifo(root / "cat/pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(root)  # a socket's path must be short
        server.bind("cat/socket.png")
        os.chdir(here)

        source = read_folder(root)

    assert Counter(source.index.locators).most_common(1)[0][1] == 1
    assert set(source.index.locators) == {
        "cat/1.png", "cat/new\nline.png", "cat/\U0001f600.png", "caf\u00e9/1.png",
        "cafe\u0301/2.png", "cat/Case.png", "cat/case.png", "dog/page.jpg",
        "cat/dir named.png/inner.png", f"cat/{'x' * 251}.png", "cat/empty.png",
        "cat/\udcff.png", "cat/far.png", "cat/linked folder/4.png",
    }  # fmt: skip
    assert source.index.classes == ("caf\u00e9", "cat", "dog")
    assert reasons(source) == {
        "cat/dangling.png": "dangling link",
        "cat/self": "cannot be read: Too many levels of symbolic links",
        "cat/pipe.png": "not a regular file",
        "cat/socket.png": "not a regular file",
        "dog/null.png": "not a regular file",
        "loose.png": "not inside a class folder",
    }
    assert "1 hidden entry skipped" in source.description
    assert "1 link to files of the same tree, counted once" in source.description
    assert "3 links to folders of the same tree, not followed" in source.description
    contents = {}
    for row, locator in enumerate(source.index.locators):
        if locator != "cat/empty.png":
            contents[locator] = source.read(row)
    assert contents["cat/\udcff.png"] == b"no UTF-8"
    assert contents["cat/linked folder/4.png"] == b"content of folder/4.png"


def test_link_into_a_hidden_store_is_a_row(tmp_path):
    """As git-annex keeps images: links to files in a hidden folder of the same tree."""
    plant(tmp_path, ".git/annex/a", ".git/annex/b")
    for name, stored in (("cat", "a"), ("dog", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").symlink_to(tmp_path / ".git/annex" / stored)
    source = read_folder(tmp_path)
    assert list(source.index.locators) == ["cat/1.png", "dog/1.png"]
    assert source.read(1) == b"content of .git/annex/b"


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    plant(tmp_path, *(f"{label}/{number}.png" for label in "cab" for number in (3, 1, 2)))
    usual = read_folder(tmp_path)

    scandir = os.scandir

    @contextmanager
    def backwards(path):
        with scandir(path) as scan:
            yield sorted(scan, key=lambda entry: entry.name, reverse=True)

    monkeypatch.setattr(folder_module.os, "scandir", backwards)
    reversed_ = read_folder(tmp_path)
    assert list(reversed_.index.locators) == list(usual.index.locators)
    assert list(usual.index.locators) == sorted(usual.index.locators)
    assert reversed_.fingerprint == usual.fingerprint


def test_unreadable_folder_is_a_problem_with_its_reason(tmp_path, monkeypatch):
    """Permissions do not stop root, so the error is simulated."""
    plant(tmp_path, "cat/1.png", "secret/2.png")
    scandir = os.scandir

    def refuse(path):
        if path.endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(folder_module.os, "scandir", refuse)
    source = read_folder(tmp_path)
    assert reasons(source) == {"secret": "cannot be read: Permission denied"}
    assert len(source.index) == 1


def test_fingerprint_follows_an_image_that_was_rewritten_with_its_old_size_and_time(tmp_path):
    plant(tmp_path, "cat/1.png", "dog/2.png")
    image = tmp_path / "cat/1.png"
    before = image.stat()
    first = read_folder(tmp_path).fingerprint
    image.write_bytes(bytes(before.st_size))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read_folder(tmp_path).fingerprint != first


def test_fingerprint_follows_content_size_time_and_name(tmp_path):
    plant(tmp_path, "cat/1.png", "dog/2.png")
    first = read_folder(tmp_path).fingerprint
    assert read_folder(tmp_path).fingerprint == first
    os.utime(tmp_path / "cat/1.png", ns=(1, 1))
    touched = read_folder(tmp_path).fingerprint
    (tmp_path / "cat/1.png").rename(tmp_path / "cat/3.png")
    renamed = read_folder(tmp_path).fingerprint
    (tmp_path / "cat/3.png").write_bytes(b"longer than before, by far and away")
    os.utime(tmp_path / "cat/3.png", ns=(1, 1))
    assert len({first, touched, renamed, read_folder(tmp_path).fingerprint}) == 4


@pytest.mark.parametrize("content", [[], ["empty folder/"], [".hidden"]])
def test_nothing_to_learn_from_is_an_error(tmp_path, content):
    for path in content:
        (tmp_path / path).mkdir() if path.endswith("/") else (tmp_path / path).touch()
    with pytest.raises(DataError, match=r"holds no files.*\n(.*\n)+.*pets/cat"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file.unlink(), "cannot be read: No such file or directory"),
        (lambda file: file.write_bytes(b""), r"empty file \(0 bytes\)"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "not a regular file"),
        (lambda file: (file.unlink(), file.mkdir()), "not a regular file"),
        (lambda file: os.truncate(file, 513 * 2**20), "513 MB is over the limit of 512 MB"),
    ],
)
def test_what_changed_since_the_scan_has_a_reason_and_hangs_nothing(tmp_path, change, reason):
    plant(tmp_path, "cat/1.png")
    source = read_folder(tmp_path)
    change(tmp_path / "cat/1.png")
    with pytest.raises(ImageError, match=reason):
        source.read(0)


def test_reading_leaves_no_file_open(tmp_path):
    plant(tmp_path, "cat/1.png")
    (tmp_path / "cat/2.png").touch()
    source = read_folder(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        source.read(0)
        with pytest.raises(ImageError):
            source.read(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_hidden_names():
    assert [is_hidden(name) for name in (".git", "._a.jpg", "__MACOSX", "a.jpg")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert read_file.IMAGE_FILE_BYTES == 512 * 1024 * 1024
