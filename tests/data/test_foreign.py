"""What is not an image is named, with what to do about it."""

import io

import pytest
from PIL import Image

from onsight.data.decode import decode
from onsight.data.pixels import FORMATS
from onsight.data.refusals import recognise_foreign
from onsight.errors import ImageError


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\0\0\0\x20ftypisom\0\0\2\0", "a video"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
        (b"\0\0\0\x18ftypavif\0\0\0\0", "AVIF"),
        (b"RIFF\0\0\0\0AVI LIST", "a video"),
        (b"\x1a\x45\xdf\xa3" + bytes(20), "a video"),
        (b"%PDF-1.7\n%abcdef", "a PDF"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b"<?xml version='1.0'?>\n<svg width='3'>", "an SVG"),
        (b"\n\n<!DOCTYPE html>\n<html><body>404", "a web page"),
        (b"PK\x03\x04" + bytes(20), "a zip archive"),
    ],
)
def test_a_known_file_is_named(data, kind):
    with pytest.raises(ImageError, match=kind):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"<", b"nothing like it at all", b"<" + bytes(600)])
def test_an_unknown_one_is_not(data):
    assert recognise_foreign(data) == ""


@pytest.mark.parametrize("kind", FORMATS)
def test_a_image_is_none_of_them(kind):
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, kind)
    assert recognise_foreign(file.getvalue()) == ""
