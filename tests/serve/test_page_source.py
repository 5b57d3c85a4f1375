"""The page's files hold nothing from outside and nothing inline, and all they refer to exists."""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files

import pytest

PAGE = files("onsight.serve").joinpath("page")
SOURCES = {entry.name: entry.read_text("utf-8") for entry in PAGE.iterdir() if entry.is_file()}
SCRIPTS = {name: text for name, text in SOURCES.items() if name.endswith(".js")}
REFERRING = {"for", "aria-labelledby", "aria-describedby", "aria-controls", "data-copies"}
VOID = {"meta", "link", "input", "img", "br"}


class Outline(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.inline += data.strip()


OUTLINE = Outline(SOURCES["index.html"])


def values(*names: str) -> Iterator[str]:
    for _, attributes in OUTLINE.elements:
        yield from (attributes[name] or "" for name in names if name in attributes)


@pytest.mark.parametrize("name", SOURCES)
def test_no_file_names_an_address_outside(name) -> None:
    assert not re.search(r"(https?:)?//[\w.-]+\.\w|url\(|@import", SOURCES[name])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_parses(name) -> None:
    """A script that does not parse leaves the page dead; only the browser tests would see it."""
    command = ["node", "--check", "--input-type=module"]
    found = subprocess.run(command, input=SCRIPTS[name], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


SHRINKING = """
const calls = [];
const context = {
  fillRect(...box) { calls.push([this.fillStyle, ...box]); },
  drawImage() { calls.push("image"); },
};
const canvas = { getContext: () => context, toBlob: (done) => done("") };
globalThis.document = { createElement: () => canvas };
globalThis.IntersectionObserver = class {};
globalThis.createImageBitmap = async () => ({ width: 1280, height: 640, close() {} });
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_transparent_parts_are_shown_on_the_background_that_the_model_sees() -> None:
    script = SHRINKING + SCRIPTS["preview.js"]
    script += "\nawait preview({}, [10, 20, 30]);\nconsole.log(JSON.stringify(calls));"
    command = ["node", "--input-type=module"]
    found = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [["rgb(10 20 30)", 0, 0, 640, 320], "image"]
    assert "preview(this.file, this.model.input.background)" in SCRIPTS["result.js"]


def test_nothing_is_inline() -> None:
    assert OUTLINE.inline == ""
    for _, attributes in OUTLINE.elements:
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    for text in SCRIPTS.values():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text
        )


def test_what_the_page_loads_is_among_its_files() -> None:
    loaded = {value.removeprefix("static/") for value in values("src", "href")}
    loaded = loaded - {"data:,", "docs"} | {"docs.js"}  # docs is the page of the API
    for text in SCRIPTS.values():
        loaded |= set(re.findall(r'from "\./(.+?)"', text))
    assert loaded == set(SOURCES) - {"index.html"}


def test_every_reference_resolves() -> None:
    ids = Counter(values("id"))
    assert [name for name, times in ids.items() if times > 1] == []
    referred = {name for value in values(*REFERRING) for name in value.split()}
    assert referred <= set(ids)
    for text in SCRIPTS.values():
        assert set(re.findall(r'(?:(?<!#)part|getElementById)\("([\w-]+)"\)', text)) <= set(ids)


def test_every_control_has_a_name() -> None:
    labelled = set(values("for"))
    for tag, attributes in OUTLINE.elements:
        if tag in ("input", "select") and "id" in attributes:
            assert attributes["id"] in labelled or attributes.get("aria-label")
        if tag == "dialog":
            assert attributes["aria-labelledby"]
