"""Headers of ordinary tars, read without tarfile. Oracle: tarfile, on the same bytes."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onsight.data.sources import archive_members, tar_headers
from onsight.data.sources.archive_members import BrokenTar, open_tar
from onsight.data.sources.tar_headers import read_ordinary_headers

SAMPLES = {"000.jpg": b"x" * 700, "000.cls": b"3", "a/b/001.jpg": b"", "a/b/001.cls": b"y" * 512}
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def member(name, content=b"", kind=tarfile.REGTYPE, **facts):
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info, content


def made(members, form=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def samples(**facts):
    return [member(name, content, **facts) for name, content in SAMPLES.items()]


def signed(content):
    """The same archive with the first checksum summed as some old programs do."""
    header = bytearray(content[:512])
    header[265] = 0xE9  # in the owner's name
    header[148:156] = b" " * 8
    total = sum(byte - 256 * (byte > 127) for byte in header)
    header[148:156] = b"%06o\0 " % total
    return bytes(header) + content[512:]


ORDINARY = {
    **{f"format {form}": made(samples(), form) for form in FORMATS},
    "as webdataset": made(samples(mtime=1.5, uname="me"), tarfile.PAX_FORMAT),
    "folders": made([member("a", kind=tarfile.DIRTYPE), *samples()]),
    "prefix": made([member("folder/" * 20 + "x.jpg", b"x"), *samples()]),
    "not UTF-8": made([member("\udce9.jpg", b"x"), *samples()], tarfile.GNU_FORMAT),
    "many": made([member(f"{n}.jpg", b"x") for n in range(tar_headers._CHECKED_AT_ONCE + 9)]),
}
ODD = {
    "long name, GNU": made([member("x" * 200, b"x"), *samples()], tarfile.GNU_FORMAT),
    "long name, pax": made([member("x" * 200, b"x"), *samples()], tarfile.PAX_FORMAT),
    "size in pax": made(samples(pax_headers={"size": "1"}), tarfile.PAX_FORMAT),
    "link": made([*samples(), member("l", kind=tarfile.SYMTYPE, linkname="000.jpg")]),
    "contiguous": made([*samples(), member("c.jpg", b"x", kind=tarfile.CONTTYPE)]),
    "unknown kind": made([*samples(), member("c.jpg", b"x", kind=b"?")]),
    "folder of old": made([*samples(), member("a/", kind=tarfile.AREGTYPE)]),
    "sizes in binary": made(samples(mtime=-1), tarfile.GNU_FORMAT),
    "signed checksum": signed(made(samples())),
    "global pax": tarfile.TarInfo.create_pax_global_header({"path": "a.jpg"}) + made(samples()),
}
BROKEN = {
    "cut in a header": made(samples())[:2000],
    "cut in content": made(samples())[:700],
    "without an end": made(samples())[: 6 * 512],
    "nothing after pax": made(samples(mtime=1.5), tarfile.PAX_FORMAT)[:1024] + bytes(1024),
    "checksum": made(samples()).replace(b"000.cls", b"001.cls"),
    "a hole in place of a header": made(samples())[:1536] + bytes(512) + made(samples())[2048:],
    "a hole up to the end": made(samples())[:1536] + bytes(2**20 + 512),
    "a hole behind unusual headers": made(samples(mtime=-1), tarfile.GNU_FORMAT)[:1536]
    + bytes(512)
    + made(samples()),
    "two in one": made(samples()) + made(samples()),
}


def wrong_number(field, value):
    """An archive with a number that is none, under a right checksum."""
    header = bytearray(made(samples())[:512])
    header[field : field + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + made(samples())[512:]


for place, text in ((100, b"0_4"), (124, b"00000000 1"), (124, b"+1"), (136, b"9"), (329, b"x")):
    BROKEN[f"{text} at {place}"] = wrong_number(place, text)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A function that makes an open file of bytes, the same one each time."""
    with open(tmp_path_factory.mktemp("tars") / "one.tar", "w+b", buffering=0) as raw:

        def put(content):
            raw.truncate(0)
            raw.seek(0)
            raw.write(content)
            return open(raw.fileno(), "rb", closefd=False)

        yield put


def by_tarfile(file):
    """(name, offset, size) of regular files; None if tarfile calls the archive broken."""
    try:
        infos = list(archive_members._tar_infos(file))
    except BrokenTar:
        return None
    assert all(info.isreg() or info.isdir() for info in infos)
    return [(info.name, info.offset_data, info.size) for info in infos if not info.isdir()]


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_archives_are_read_as_tarfile_does(name, on_disk):
    file = on_disk(ORDINARY[name])
    found = read_ordinary_headers(file.fileno())
    assert found is not None
    assert found == by_tarfile(file)


@pytest.mark.parametrize("name", [*ODD, *BROKEN])
def test_others_are_left_to_tarfile(name, on_disk):
    assert read_ordinary_headers(on_disk((ODD | BROKEN)[name]).fileno()) is None


@pytest.mark.parametrize("name", [*ORDINARY, *ODD, *BROKEN])
def test_the_reader_is_the_same_either_way(name, on_disk, monkeypatch):
    content = (ORDINARY | ODD | BROKEN)[name]

    def outcome():
        try:
            members, reader = open_tar(on_disk(content))
        except BrokenTar as error:
            return str(error)
        return members.paths, members.problems, reader.offsets, reader.sizes

    found = outcome()
    monkeypatch.setattr(archive_members, "read_ordinary_headers", lambda descriptor: None)
    assert found == outcome()


@pytest.mark.parametrize("name", [name for name in BROKEN if "hole" in name or "two" in name])
def test_an_archive_that_goes_on_after_its_end_mark_is_broken(name, on_disk):
    with pytest.raises(BrokenTar, match="goes on after the end mark at byte"):
        open_tar(on_disk(BROKEN[name]))


@given(
    st.sampled_from(["format 0", "as webdataset", "folders"]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 511), st.integers(0, 255)), max_size=3),
    st.booleans(),
)
def test_changed_bytes(on_disk, name, changes, fix):
    """Bytes of the first blocks are changed, and the checksums fixed or not."""
    content = bytearray(ORDINARY[name])
    for block, place, byte in changes:
        content[512 * block + place] = byte
        if fix:
            header = content[512 * block : 512 * (block + 1)]
            header[148:156] = b" " * 8
            content[512 * block + 148 : 512 * block + 156] = b"%06o\0 " % sum(header)
    file = on_disk(bytes(content))
    found = read_ordinary_headers(file.fileno())
    assert found is None or found == by_tarfile(file)
