"""Archives made here, well-formed and malicious. Oracle: the bytes that went in."""

import bz2
import gzip
import io
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from onsight.data.index import TEST, TRAIN
from onsight.data.sources import archive, archive_members
from onsight.data.sources.archive import read_archive
from onsight.errors import DataError, DiskError, ImageError

NOISE = np.random.default_rng(0).bytes(5000)
PETS = {"cat/1.jpg": b"one", "dog/2.jpg": NOISE, "dog/deep/3.jpg": b"three" * 99}
TAR_ENDINGS = {
    ".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz",
}  # fmt: skip


def make_zip(path, files, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            add(archive, name, content)
    return path


def add(archive, name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))


def make(path, files):
    if path.suffix == ".zip":
        return make_zip(path, files)
    return make_tar(path, files, TAR_ENDINGS["".join(path.suffixes)])


def contents(source):
    return {locator: source.read(row) for row, locator in enumerate(source.index.locators)}


def reasons(source):
    return {problem.path: problem.reason for problem in source.problems}


@pytest.mark.parametrize("ending", [".zip", *TAR_ENDINGS])
def test_every_format_returns_the_stored_bytes(tmp_path, ending):
    source = read_archive(make(tmp_path / f"pets{ending}", PETS))
    assert contents(source) == PETS
    assert source.index.classes == ("cat", "dog")
    assert source.problems == []
    kind = "zip" if ending == ".zip" else "tar"
    assert source.description == (f"{kind} archive of class folders, 2 classes, 3 files")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_of_zip(tmp_path, compression):
    assert contents(read_archive(make_zip(tmp_path / "a.zip", PETS, compression))) == PETS


def test_kind_is_recognised_by_content_not_by_name(tmp_path):
    make_zip(tmp_path / "a.zip", PETS).rename(tmp_path / "a.tar")
    assert contents(read_archive(tmp_path / "a.tar")) == PETS


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz"])
def test_wrapper_splits_and_hidden_members(tmp_path, ending):
    files = {
        "README": b"first, so that rows and members are numbered differently",
        "./pets/train/cat/1.jpg": b"1",
        "./pets/test/cat/2.jpg": b"2",
        "./pets/.DS_Store": b"x",
        "./__MACOSX/pets/train/cat/._1.jpg": b"x",
    }
    source = read_archive(make(tmp_path / f"a{ending}", files))
    assert contents(source) == {"pets/train/cat/1.jpg": b"1", "pets/test/cat/2.jpg": b"2"}
    assert source.index.splits.tolist() == [TRAIN, TEST]
    assert source.index.classes == ("cat",)
    assert "2 hidden entries skipped" in source.description
    assert reasons(source) == {"README": "not inside a class folder"}


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_threads_do_not_disturb_each_other(tmp_path, ending):
    rng = np.random.default_rng(1)
    files = {f"c{n % 3}/{n}.jpg": rng.bytes(int(rng.integers(1, 30_000))) for n in range(60)}
    source = read_archive(make(tmp_path / f"a{ending}", files))
    rows = rng.integers(0, 60, 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(source.read, rows))
    assert read == [files[source.index.locators[row]] for row in rows]


def test_unmarked_utf8_names_of_macos(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"caf\u00e9/1.jpg": b"1", "th\u00e9/2.jpg": b"2"})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(signature)
        while at >= 0:
            data[at + offset + 1] &= ~0x08  # the flag that says UTF-8
            at = data.find(signature, at + 1)
    path.write_bytes(data)
    source = read_archive(path)
    assert source.index.classes == ("caf\u00e9", "th\u00e9")
    assert contents(source) == {"caf\u00e9/1.jpg": b"1", "th\u00e9/2.jpg": b"2"}


def test_tar_names_that_are_not_utf8_survive(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        add(archive, "cat/\udcff.jpg", b"odd")
        add(archive, f"dog/{'long' * 60}.jpg", b"long")
    assert contents(read_archive(tmp_path / "a.tar"))["cat/\udcff.jpg"] == b"odd"


EVIL_NAMES = {
    "/cat/absolute.jpg": "absolute path",
    "C:/cat/drive.jpg": "absolute path",
    "../cat/slip.jpg": "leads out of the archive ('..')",
    "cat/../../slip.jpg": "leads out of the archive ('..')",
    "cat/..\\..\\windows.jpg": "leads out of the archive ('..')",
}


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_names_that_lead_out_are_problems(tmp_path, ending):
    path = make(tmp_path / f"a{ending}", {**PETS, **dict.fromkeys(EVIL_NAMES, b"evil")})
    before = sorted(os.walk(tmp_path))
    source = read_archive(path)
    assert contents(source) == PETS
    found = {name.replace("\\", "/"): reason for name, reason in reasons(source).items()}
    assert found == {name.replace("\\", "/"): reason for name, reason in EVIL_NAMES.items()}
    assert sorted(os.walk(tmp_path)) == before


def test_tar_links_devices_and_repetitions_are_problems(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "cat", type=tarfile.DIRTYPE)
        add(archive, "cat/1.jpg", b"first")
        add(archive, "cat/soft.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add(archive, "cat/hard.jpg", type=tarfile.LNKTYPE, linkname="cat/1.jpg")
        add(archive, "cat/device.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        add(archive, "cat/pipe.jpg", type=tarfile.FIFOTYPE)
        add(archive, "cat/sparse.jpg", type=tarfile.GNUTYPE_SPARSE)
        add(archive, "cat/nul.jpg", b"nul", pax_headers={"path": "cat/a\0b.jpg"})
        add(archive, "./cat//1.jpg", b"second")
    source = read_archive(tmp_path / "a.tar")
    assert contents(source) == {"cat/1.jpg": b"first"}
    assert reasons(source) == {
        "cat/soft.jpg": "a link",
        "cat/hard.jpg": "a link",
        "cat/device.jpg": "not a regular file",
        "cat/pipe.jpg": "not a regular file",
        "cat/sparse.jpg": "stored as a sparse file",
        "cat/a\\0b.jpg": "has a NUL in its name",
        "./cat//1.jpg": "appears twice in the archive",
    }


def test_zip_links_devices_and_repetitions_are_problems(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("cat/", b"")
        archive.writestr("cat/1.jpg", b"first")
        for name, mode in (("soft", stat.S_IFLNK), ("device", stat.S_IFCHR)):
            info = zipfile.ZipInfo(f"cat/{name}.jpg")
            info.create_system = 3
            info.external_attr = (mode | 0o777) << 16
            archive.writestr(info, b"/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("cat/1.jpg", b"second")
    source = read_archive(tmp_path / "a.zip")
    assert contents(source) == {"cat/1.jpg": b"first"}
    assert reasons(source) == {
        "cat/soft.jpg": "a link",
        "cat/device.jpg": "not a regular file",
        "cat/1.jpg": "appears twice in the archive",
    }


def test_zip_members_that_must_not_be_decompressed(tmp_path):
    path = make_zip(
        tmp_path / "a.zip", {"cat/bomb.jpg": bytes(11_000_000), "cat/small bomb.jpg": bytes(9000)}
    )
    source = read_archive(path)
    with pytest.raises(ImageError, match="suspiciously compressed: 11 MB in"):
        source.read(0)
    assert source.read(1) == bytes(9000)


def test_an_encrypted_member_is_a_problem(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"cat/1.jpg": b"secret"}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(ImageError, match="^encrypted; unpack the archive"):
        read_archive(path).read(0)


def test_a_damaged_member_is_a_problem_and_the_others_are_read(tmp_path):
    path = make_zip(tmp_path / "a.zip", PETS, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[data.index(NOISE) + 100] ^= 1
    path.write_bytes(data)
    source = read_archive(path)
    with pytest.raises(ImageError, match="Bad CRC-32"):
        source.read(1)
    assert source.read(2) == PETS["dog/deep/3.jpg"]


def test_empty_and_huge_members(tmp_path):
    source = read_archive(make_tar(tmp_path / "a.tar", {"cat/0.jpg": b""}))
    with pytest.raises(ImageError, match=r"empty file \(0 bytes\)"):
        source.read(0)
    length = 513 * 2**20
    with open(tmp_path / "b.tar", "wb") as file:  # sparse on the disk, not in the archive
        info = tarfile.TarInfo("cat/1.jpg")
        info.size = length
        file.write(info.tobuf())
        file.truncate(512 + length + 1024)
    with pytest.raises(ImageError, match="513 MB is over the limit"):
        read_archive(tmp_path / "b.tar").read(0)


@pytest.mark.parametrize("ending", [".zip", *TAR_ENDINGS])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_truncated_archives_are_errors(tmp_path, ending, share):
    path = make(tmp_path / f"a{ending}", {f"c{n}/{n}.jpg": NOISE for n in range(10)})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataError, match=r"a\.\S+ is (a broken|damaged)"):
        read_archive(path)


def test_tar_cut_between_members_is_an_error(tmp_path):
    path = make_tar(tmp_path / "a.tar", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(DataError, match="has no end mark"):
        read_archive(path)


def test_damaged_tar_header_is_an_error_and_not_the_end(tmp_path):
    """tarfile itself stops there silently, so the rest would be missing."""
    path = make_tar(tmp_path / "a.tar", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    path.write_bytes(data)
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == 1
    with pytest.raises(DataError, match="broken tar"):
        read_archive(path)


@pytest.mark.parametrize("size", [-1024, 2**63 - 1, 2**70])
def test_a_tar_with_an_impossible_size_is_broken(tmp_path, size):
    """A size of -1024 sends a naive reader back to the first header forever."""
    first = tarfile.TarInfo("cat/0.jpg").tobuf()
    header = bytearray(tarfile.TarInfo("cat/1.jpg").tobuf())
    header[124:136] = bytes([0xFF if size < 0 else 0x80]) + size.to_bytes(11, signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(first + bytes(header) + bytes(1024))
    with pytest.raises(DataError, match="negative size"):
        read_archive(tmp_path / "a.tar")


@pytest.mark.parametrize("place", ["first", "global", "second of two"])
def test_large_attributes_of_a_tar_are_refused(tmp_path, place):
    """tarfile of Python 3.11.7 takes half an hour to read a megabyte of digits."""
    kind = tarfile.XGLTYPE if place == "global" else tarfile.XHDTYPE
    attributes = b""
    for size in [9, 20_000] if place == "second of two" else [20_000]:
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, size
        text = b"9 uid=77\n" if size == 9 else b"1" * size
        attributes += header.tobuf(tarfile.USTAR_FORMAT) + text + bytes(-size % 512)
    whole = make_tar(tmp_path / "a.tar", {"cat/1.jpg": b"1"}).read_bytes()
    (tmp_path / "a.tar").write_bytes(attributes + whole)
    with pytest.raises(DataError, match=r"20,000 bytes of extended attributes .* --no-xattrs"):
        read_archive(tmp_path / "a.tar")


def test_members_with_ordinary_attributes_are_read(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "cat/1.jpg", b"1", pax_headers={"SCHILY.xattr.user.note": "x" * 16_000})
    assert contents(read_archive(tmp_path / "a.tar")) == {"cat/1.jpg": b"1"}


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz", ".tar.xz"])
@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100])
def test_what_only_has_the_name_of_an_archive(tmp_path, ending, content):
    (tmp_path / f"a{ending}").write_bytes(content)
    with pytest.raises(DataError, match="is a broken"):
        read_archive(tmp_path / f"a{ending}")


def test_folders_of_a_zip_that_have_content_are_listed(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, mode, content in (
            ("cat/", stat.S_IFDIR, b""),
            ("cat/1.jpg", stat.S_IFREG, b"1"),
            ("cat/2.jpg", stat.S_IFDIR, b"2"),
            ("cat/3.jpg/", 0, b"3"),
        ):
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, content)
    source = read_archive(tmp_path / "a.zip")
    assert contents(source) == {"cat/1.jpg": b"1"}
    reason = "a folder with content"
    assert reasons(source) == {"cat/2.jpg": reason, "cat/3.jpg/": reason}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_false_size_does_not_fill_memory(tmp_path, method):
    path = make_zip(tmp_path / "pets.zip", {**PETS, "cat/9.png": bytes(100_000_000)}, method)
    lie = path.read_bytes().replace(struct.pack("<I", 100_000_000), struct.pack("<I", 1000))
    path.write_bytes(lie)
    source = read_archive(path)
    row = list(source.index.locators).index("cat/9.png")
    tracemalloc.start()
    with pytest.raises(ImageError, match="cannot be read from the archive"):
        source.read(row)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80e6  # some of the 100 MB that zipfile makes of a chunk of LZMA


def test_neither_zip_nor_tar(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"something else")
    with pytest.raises(DataError, match="neither a zip nor a tar"):
        read_archive(tmp_path / "a.bin")


@pytest.mark.parametrize("module", [gzip, bz2])
def test_decompression_bomb_is_stopped(tmp_path, monkeypatch, module):
    monkeypatch.setattr(archive, "_RATIO_FREE_BYTES", 2**20)
    with module.open(tmp_path / "bomb.tar.gz", "wb") as file:
        for _ in range(8):
            file.write(bytes(2**20))
    with pytest.raises(DataError, match="suspiciously compressed: stopped after"):
        read_archive(tmp_path / "bomb.tar.gz")


def test_a_small_archive_is_not_unpacked_beyond_a_small_disk(tmp_path):
    (tmp_path / "bomb.tar.gz").write_bytes(130 * gzip.compress(bytes(2**20)))
    with pytest.raises(DataError, match=r"suspiciously compressed: stopped after 0\.1 GB"):
        read_archive(tmp_path / "bomb.tar.gz", tmp_path)


def test_compressed_tar_leaves_no_file_in_the_cache(tmp_path):
    cache = tmp_path / "cache"
    source = read_archive(make_tar(tmp_path / "a.tar.gz", PETS, "w:gz"), cache)
    assert list(cache.iterdir()) == []
    assert contents(source) == PETS


def test_a_disk_error_is_reported(tmp_path):
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    path = make_tar(tmp_path / "a.tar.gz", PETS, "w:gz")
    with pytest.raises(DiskError, match=r"cannot write .*cache"):
        read_archive(path, tmp_path / "cache")


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_too_many_members(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(archive_members, "ARCHIVE_MEMBERS", 2)
    with pytest.raises(DataError, match="more than 2 members"):
        read_archive(make(tmp_path / f"a{ending}", PETS))


@pytest.mark.parametrize(
    "names",
    [
        ["cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"],
        ["cifar-100-python/train", "cifar-100-python/test", "cifar-100-python/meta"],
        ["train-images-idx3-ubyte.gz"],
    ],
)
def test_archives_of_batches_say_what_to_do(tmp_path, names):
    path = make_tar(tmp_path / "a.tar.gz", dict.fromkeys(names, b"x"), "w:gz")
    with pytest.raises(DataError, match="unpack it and give the folder"):
        read_archive(path)


@pytest.mark.parametrize("ending", [".zip", ".tar"])
def test_no_class_folder_is_an_error(tmp_path, ending):
    path = make(tmp_path / f"a{ending}", {"1.jpg": b"1"})
    with pytest.raises(DataError, match="is in a class folder"):
        read_archive(path)


@pytest.mark.parametrize("ending", [".zip", ".tar", ".tar.gz"])
def test_files_are_closed_with_the_source(tmp_path, ending):
    path = make(tmp_path / f"a{ending}", PETS)
    before = len(os.listdir("/proc/self/fd"))
    source = read_archive(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_fingerprint_follows_the_file(tmp_path):
    path = make_zip(tmp_path / "a.zip", PETS)
    first = read_archive(path).fingerprint
    assert read_archive(path).fingerprint == first
    os.utime(path, ns=(1, 1))
    assert read_archive(path).fingerprint != first


def test_a_tar_that_is_truncated_after_it_was_opened(tmp_path):
    path = make_tar(tmp_path / "pets.tar", {"cat/1.png": b"a" * 5000, "dog/2.png": b"b" * 5000})
    source = read_archive(path)
    os.truncate(path, 3000)
    with pytest.raises(ImageError, match="truncated after it was opened"):
        source.read(0)
