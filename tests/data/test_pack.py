import errno
import fcntl
import json
import math
import os
import zlib
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch

from onsight.data import decode, packing
from onsight.data.decode import pixel_digest
from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Problem, Row
from onsight.data.pack import block_checksums, open_pack
from onsight.data.packing import PackJob, TimeLimit
from onsight.data.sources.source import Source
from onsight.errors import DataError, DiskError, ImageError

RNG = np.random.default_rng(0)


def make_source(images, labels=None, fingerprint="one", root="/data"):
    """A source of plain pixels; None is an image that cannot be read."""
    labels = labels or ["a" if number % 2 else "b" for number in range(len(images))]

    def read(row):
        if images[row] is None:
            raise ImageError("broken on purpose")
        return images[row]

    rows = [Row(f"p{number}", label) for number, label in enumerate(labels)]
    return Source("test", Path(root), Index.of(rows), read, fingerprint, "a test")


def open_job(source, target, cache_folder, **options):
    return open_pack(PackJob(source, target, **options), cache_folder)


def grey(count, side=6):
    return list(RNG.integers(0, 256, (count, side, side, 1), np.uint8))


def pixels_by_locator(pack):
    return {pack.index.locators[i]: pack.pixels[pack.rows[i]] for i in range(len(pack))}


AUTO = ImageFormat(6, 6, 0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("cached", [True, False])
def test_every_image_comes_back_with_its_label(tmp_path, threads, cached):
    images = grey(200)
    source = make_source(images)
    pack = open_job(source, AUTO, tmp_path if cached else None, threads=threads)
    assert len(pack) == 200
    found = pixels_by_locator(pack)
    for number, image in enumerate(images):
        assert np.array_equal(found[f"p{number}"], image)
    for i in range(200):
        number = int(pack.index.locators[i][1:])
        assert pack.index.classes[pack.index.labels[i]] == ("a" if number % 2 else "b")


def test_order_is_that_of_the_digests_whatever_the_order_of_the_source(tmp_path):
    images = grey(50)
    labels = [str(number % 3) for number in range(50)]
    job = open_job(make_source(images, labels), AUTO, None)
    reversed_job = open_job(make_source(images[::-1], labels[::-1]), AUTO, None)
    assert np.array_equal(job.digests, reversed_job.digests)
    assert np.array_equal(job.pixels[job.rows], reversed_job.pixels[reversed_job.rows])
    assert np.array_equal(job.index.labels, reversed_job.index.labels)
    assert sorted(map(bytes, job.digests)) == [bytes(digest) for digest in job.digests]


def test_the_same_image_in_two_classes_has_one_order_too():
    images = grey(3) * 2
    labels = ["x", "y", "x", "y", "x", "y"]
    job = open_job(make_source(images, labels), AUTO, None)
    reversed_job = open_job(make_source(images[::-1], labels[::-1]), AUTO, None)
    assert job.index.labels.tolist() == reversed_job.index.labels.tolist() == [0, 1] * 3


def test_digest_depends_on_content_not_container():
    image = grey(1)[0]
    assert pixel_digest(image) == pixel_digest(np.repeat(image, 3, axis=2))
    other = image.copy()
    other[0, 0, 0] ^= 1
    assert pixel_digest(image) != pixel_digest(other)
    assert pixel_digest(image.reshape(4, 9, 1)) != pixel_digest(image)
    colour = np.repeat(image, 3, axis=2)
    colour[5, 5, 2] ^= 1
    assert pixel_digest(colour) != pixel_digest(image)


def test_one_colour_image_late_makes_all_of_them_colour(tmp_path):
    images = grey(150)
    images[100] = RNG.integers(0, 256, (6, 6, 3), np.uint8)
    pack = open_job(make_source(images), AUTO, tmp_path)
    assert pack.format.channels == 3
    found = pixels_by_locator(pack)
    for number, image in enumerate(images):
        expected = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        assert np.array_equal(found[f"p{number}"], expected)


def test_channels_can_be_asked_for():
    images = [RNG.integers(0, 256, (6, 6, 3), np.uint8) for _ in range(3)]
    assert open_job(make_source(images), ImageFormat(6, 6, 1), None).pixels.shape[3] == 1
    assert open_job(make_source(grey(3)), ImageFormat(6, 6, 3), None).pixels.shape[3] == 3


def test_unusable_images_are_listed_and_distort_nothing(tmp_path):
    images = grey(10)
    images[3] = None
    pack = open_job(make_source(images), AUTO, tmp_path)
    assert pack.problems == [Problem("p3", "decode", "broken on purpose")]
    assert len(pack) == 9
    again = open_job(make_source(images), AUTO, tmp_path)
    assert again.was_cached
    assert again.problems == pack.problems
    with pytest.raises(DataError, match="p3: broken on purpose"):
        open_job(make_source(images), AUTO, None, strict=True)
    with pytest.raises(DataError, match="p3: broken on purpose"):
        open_job(make_source(images), AUTO, tmp_path, strict=True)


def test_a_class_without_usable_images_is_not_a_class():
    images = grey(4)
    images[3] = None
    pack = open_job(make_source(images, ["x", "y", "x", "z"]), AUTO, None)
    assert pack.index.classes == ("x", "y")
    assert sorted(pack.index.labels.tolist()) == [0, 0, 1]


def test_nothing_usable_is_an_error_with_the_reasons(tmp_path):
    with pytest.raises(DataError, match="none of the 3 images .* 3 x broken on purpose"):
        open_job(make_source([None] * 3), AUTO, tmp_path)
    assert not list(tmp_path.glob("packs/*"))


def test_pack_is_reused_until_anything_changes(tmp_path):
    images = grey(5)
    assert not open_job(make_source(images), AUTO, tmp_path).was_cached
    assert open_job(make_source(images), AUTO, tmp_path).was_cached
    changed = make_source(grey(5), fingerprint="two")
    assert not open_job(changed, AUTO, tmp_path).was_cached
    assert len(list((tmp_path / "packs").iterdir())) == 1
    assert not open_job(changed, ImageFormat(7, 7, 0), tmp_path).was_cached
    assert len(list((tmp_path / "packs").iterdir())) == 2


@pytest.mark.parametrize("decoder", [(decode, "VERSION"), (PIL, "__version__")])
def test_a_pack_of_another_decoder_is_rebuilt(tmp_path, monkeypatch, decoder):
    images = grey(5)
    open_job(make_source(images), AUTO, tmp_path)
    monkeypatch.setattr(*decoder, "99")
    assert not open_job(make_source(images), AUTO, tmp_path).was_cached


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: data + b"more"])
@pytest.mark.parametrize("name", ["pixels.bin", "table.safetensors", "pack.json"])
def test_a_damaged_pack_is_rebuilt(tmp_path, name, change):
    images = grey(5)
    open_job(make_source(images), AUTO, tmp_path)
    (file,) = (tmp_path / "packs").glob(f"*/{name}")
    file.write_bytes(change(file.read_bytes()))
    pack = open_job(make_source(images), AUTO, tmp_path)
    assert not pack.was_cached
    assert np.array_equal(pixels_by_locator(pack)["p0"], images[0])


@pytest.mark.parametrize("facts", ["[]", "3", "null", '{"key": []}', '{"key": "KEY", "format": 3}'])
def test_facts_of_another_shape_are_those_of_no_pack(tmp_path, facts):
    open_job(make_source(grey(5)), AUTO, tmp_path)
    (file,) = (tmp_path / "packs").glob("*/pack.json")
    file.write_text(facts.replace("KEY", json.loads(file.read_text())["key"]))
    assert not open_job(make_source(grey(5)), AUTO, tmp_path).was_cached
    assert open_job(make_source(grey(5)), AUTO, tmp_path).was_cached


def flip_a_bit(content):
    content[77] ^= 1


def make_a_hole(content):
    content[36:72] = bytes(36)


@pytest.mark.parametrize("damage", [flip_a_bit, make_a_hole])
def test_damaged_pixels_are_noticed_though_the_file_keeps_its_size(tmp_path, damage):
    images = grey(5)
    open_job(make_source(images), AUTO, tmp_path)
    (file,) = (tmp_path / "packs").glob("*/pixels.bin")
    content = bytearray(file.read_bytes())
    damage(content)
    file.write_bytes(content)
    pack = open_job(make_source(images), AUTO, tmp_path)
    assert not pack.was_cached
    assert np.array_equal(pixels_by_locator(pack)["p2"], images[2])
    assert open_job(make_source(images), AUTO, tmp_path).was_cached


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux counts its pages")
def test_checksums_keep_no_pages_of_a_mapped_file(tmp_path):
    path, size = tmp_path / "pixels.bin", 128 << 20
    path.write_bytes(bytes(size))

    def count_mapped():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile:"))

    content = np.memmap(path, np.uint8, "c")
    before = count_mapped()
    checksums = block_checksums(content, threads=1)
    assert checksums.tolist() == [zlib.crc32(bytes(16 << 20))] * 8
    assert count_mapped() - before < size / 4


def test_leftovers_of_killed_builds_are_removed(tmp_path):
    open_job(make_source(grey(5)), AUTO, tmp_path)
    (place,) = (tmp_path / "packs").iterdir()
    for name in (f".{place.name}.1.tmp", f".{place.name}.2.old", ".another.3.tmp"):
        place.with_name(name).mkdir()
        (place.with_name(name) / "pixels.bin").write_bytes(b"half")
    open_job(make_source(grey(5), fingerprint="two"), AUTO, tmp_path)
    assert [path.name for path in (tmp_path / "packs").iterdir()] == [place.name]


def test_what_another_process_is_building_is_left_alone(tmp_path):
    others = tmp_path / "packs" / ".another.1.tmp"
    others.mkdir(parents=True)
    (tmp_path / "locks").mkdir()
    with open(tmp_path / "locks" / "another", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        open_job(make_source(grey(5)), AUTO, tmp_path)
        assert others.is_dir()
    open_job(make_source(grey(5), fingerprint="two"), AUTO, tmp_path)
    assert not others.exists()


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path):
    open_job(make_source(grey(5)), AUTO, tmp_path / "cache")
    (lock,) = (tmp_path / "cache" / "locks").iterdir()
    lock.unlink()
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    lock.symlink_to(mine)
    with pytest.raises(DiskError):
        open_job(make_source(grey(5)), AUTO, tmp_path / "cache")
    assert mine.read_text() == "keep"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_what_is_in_a_read_only_cache_is_read(tmp_path, monkeypatch, number):
    source = make_source(grey(5))
    built = open_job(source, AUTO, tmp_path)
    real = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_CREAT and Path(path).parent.name == "locks":
            raise OSError(number, os.strerror(number))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    pack = open_job(source, AUTO, tmp_path)
    assert pack.was_cached
    assert np.array_equal(pack.digests, built.digests)
    with pytest.raises(DiskError, match="cannot write .*; set --cache-folder to another folder"):
        open_job(make_source(grey(5), fingerprint="two"), AUTO, tmp_path)


def test_disk_full_while_packing_leaves_nothing_half_made(tmp_path, monkeypatch):
    real = os.fsync

    def refuse(descriptor):
        if os.fstat(descriptor).st_size == 5 * 36:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskError, match="no space left"):
        open_job(make_source(grey(5)), AUTO, tmp_path)
    assert list((tmp_path / "packs").iterdir()) == []


def test_without_a_cache_nothing_is_kept(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pack = open_job(make_source(grey(5)), AUTO, None)
    assert list(tmp_path.iterdir()) == []
    assert pack.pixels.sum() > 0


def test_progress_counts_every_image():
    seen = []
    open_job(make_source(grey(130)), AUTO, None, progress=seen.append)
    assert sum(seen) == 130


def test_pack_json_names_its_format(tmp_path):
    open_job(make_source(grey(5)), AUTO, tmp_path)
    (file,) = (tmp_path / "packs").glob("*/pack.json")
    assert json.loads(file.read_text())["format"]["channels"] == 1


def limit(count, deadline, required=()):
    """Decode from the last row to the first; only some are required."""
    is_optional = np.ones(count, bool)
    is_optional[[*required]] = False
    return {"time_limit": TimeLimit(deadline, np.arange(count)[::-1], is_optional)}


def test_after_the_deadline_only_required_images_are_decoded_and_the_others_listed(tmp_path):
    source = make_source(grey(300))
    required = [*range(5), *range(230, 300)]
    past = limit(300, 0.0, required)
    pack = open_job(source, AUTO, tmp_path, threads=2, strict=True, **past)
    assert sorted(pack.sources.tolist()) == required
    assert [problem.path for problem in pack.problems] == [f"p{n}" for n in range(229, 4, -1)]
    assert {(problem.stage, problem.reason) for problem in pack.problems} == {
        ("draw", "no time to decode it")
    }
    assert not list((tmp_path / "packs").iterdir())
    assert not open_job(source, AUTO, tmp_path).was_cached  # what is kept is whole


def test_a_pack_that_was_decoded_in_time_is_kept_whatever_the_order(tmp_path):
    source = make_source(grey(300))
    first = open_job(source, AUTO, tmp_path, threads=2, **limit(300, math.inf))
    again = open_job(source, AUTO, tmp_path)
    assert again.was_cached
    in_order = open_job(source, AUTO, None)
    for pack in (first, again):
        assert pack.sources.tolist() == in_order.sources.tolist()
        assert torch.equal(pack.take(np.arange(300)), in_order.take(np.arange(300)))


def test_no_optional_image_follows_one_that_there_was_no_time_for(monkeypatch):
    """With several threads a later chunk may still be begun in time."""
    moments = iter([0.0] * 100 + [2.0] + [0.0] * 200)
    monkeypatch.setattr(packing.time, "monotonic", lambda: next(moments))
    pack = open_job(make_source(grey(300)), AUTO, None, **limit(300, 1.0, required=[7]))
    assert sorted(pack.sources.tolist()) == [7, *range(200, 300)]
    assert len(pack.problems) == 199
