"""Pages contain all that they show, and replace no file of another origin."""

import base64
import io
from importlib import resources

import pytest
from PIL import Image

from onsight.errors import OutputError
from onsight.files import has_mark, refuse_foreign
from onsight.report.html_page import (
    inline_thumbnail,
    page_template,
    write_page,
)


@pytest.mark.parametrize(
    ("size", "shown", "tiny"), [((224, 112), (112, 56), False), ((28, 28), (28, 28), True)]
)
def test_a_thumbnail_is_a_data_uri_of_at_most_its_side(size, shown, tiny):
    thumbnail = inline_thumbnail(Image.new("RGB", size, "red"), 112)
    head, _, data = thumbnail.uri.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == shown
        assert image.getpixel((0, 0)) == (255, 0, 0)
    assert thumbnail.tiny == tiny


@pytest.mark.parametrize(("side", "kind"), [(64, "png"), (65, "jpeg"), (300, "jpeg")])
def test_a_thumbnail_may_be_a_jpeg_unless_it_is_small(side, kind):
    thumbnail = inline_thumbnail(Image.new("L", (side, 20)), 128, lossless_side=64)
    assert thumbnail.uri.startswith(f"data:image/{kind};base64,")
    assert thumbnail.tiny == (kind == "png")


def test_only_a_file_with_the_mark_is_replaced(tmp_path):
    path = tmp_path / "page.html"
    refuse_foreign(path, b"<!-- ours -->", "a page")  # there is none
    path.write_text("<!-- ours --> page")
    refuse_foreign(path, b"<!-- ours -->", "a page")
    path.write_text(" " * 8_000 + "<!-- ours -->")
    assert not has_mark(path, b"<!-- ours -->")
    with pytest.raises(OutputError, match="is not a page written by Onsight"):
        refuse_foreign(path, b"<!-- ours -->", "a page")


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("onsight.report", "report.html.jinja"),
        ("onsight.report", "compare.html.jinja"),
        ("onsight.audit", "check.html.jinja"),
    ],
)
def test_the_pages_share_their_style(package, name):
    text = (resources.files(package) / name).read_text(encoding="utf-8")
    assert '{% include "onsight.report/page.css" %}' in text
    assert "--card: " not in text
    assert "--card: " in page_template("onsight.report", "page.css").render()


def test_names_that_are_not_utf8_are_escaped(tmp_path):
    write_page(tmp_path / "page.html", "caf\udce9")
    assert (tmp_path / "page.html").read_text() == "caf\\udce9"
