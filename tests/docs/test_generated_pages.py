"""The pages generated from code have everything that the code has."""

import ast
import json
import re
from pathlib import Path
from types import SimpleNamespace

import errors_page
import notebook_page
import pytest
from build import STORED
from commands_page import commands_page, escape, flags, settings_page
from errors_page import Call
from rules_page import rules_page

from onsight.cli import make_app
from onsight.config import Config
from onsight_lint.read import rule_table

ROOT = Path(__file__).parents[2]


def sections(page, level):
    """The text below each heading of a level, by the heading's words."""
    parts = re.split(rf"^{level} ([\w-]+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("page", STORED)
def test_the_page_in_git_is_up_to_date(page):
    stored = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert stored == STORED[page](), "write it with `make docs`, and commit it"


def test_every_setting_has_its_heading_flag_default_and_description():
    found = sections(settings_page(), "###")
    assert found.keys() == Config.model_fields.keys()
    for name, field in Config.model_fields.items():
        assert f"`--{name.replace('_', '-')}`" in found[name]
        assert escape(field.description) in found[name]
    assert "whole number or `auto` · at least 1 and at most 1,000,000" in found["epochs"]
    assert "at least 0 and below 0.5 · default: `0.1`" in found["test_fraction"]
    assert "`--flip`, `--no-flip` · true or false · default: `true`" in found["flip"]


def test_every_command_has_all_of_its_options():
    found = sections(commands_page(), "##")
    commands = [name for name in make_app() if not name.startswith("-")]
    assert found.keys() == {*commands, "onsight-explain"}
    for name, text in found.items():
        shown = {*re.findall(r"`(--?[a-z0-9-]+)`", text)}
        positional = {f"--{word.lower()}" for word in re.findall(r"`([A-Z-]+)`", text)}
        hidden = {"--help", "-h", "--help-all", "--version", *positional}
        opposites = {flag for flag in flags(name) if flag.startswith(("--no-", "--empty-"))}
        assert flags(name) - opposites - hidden - shown == set()
    assert "[`--epochs`](settings.md#epochs)" in found["train"]


def test_every_rule_has_a_mistake():
    found = sections(rules_page(), "##")
    assert found.keys() == rule_table().keys()
    for rule, text in found.items():
        assert rule_table()[rule].title in text.replace("\\", "")
        assert 'python title="Mistake"' in text


CODE = """
def f(path, n):
    hint = "name another" if n else f"add {n} more images"
    raise DataError(
        f"{path} has {n} images; "
        "that is too few"
    )
    raise DataError("too many images" if n else hint)
    raise ConfigError(explain(path))
"""


def test_messages_are_read_from_code(tmp_path):
    script = tmp_path / "code.py"
    script.write_text(CODE)
    found = [text for call in errors_page._calls(script) for text in call.text(0)]
    assert found == [
        "… has … images; that is too few",
        "too many images",
        "name another",
        "add … more images",
    ]


def test_an_argument_that_is_no_text_has_no_template():
    call = ast.parse("DataError(problem.text, 3)").body[0].value
    assert Call(None, call, SimpleNamespace()).text(0) == []


@pytest.mark.docs
def test_known_messages_are_on_the_page_of_errors():
    page = errors_page.errors_page()
    found = sections(page, "##")
    assert "no DATA to train on." in page
    assert "not inside a class folder" in page.partition("## Reasons in problems.csv")[2]
    assert "near-duplicate" in page.partition("## Findings of check")[2]
    assert "| `DataError` | 2 |" in page
    assert "Messages" in found


def test_a_notebook_has_its_outputs(tmp_path):
    png = "iVBORw0KGgo="
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["10\n"]},
        {"output_type": "display_data", "data": {"image/png": png, "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/html": ["<b>a</b>\n", "\n", "<i>b</i>"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {"cell_type": "code", "source": ["print(10)"], "outputs": outputs},
    ]
    notebook = tmp_path / "one.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    assert notebook_page.notebook_page(notebook, tmp_path / "pages") == (
        "# Title\nText.\n\n```python\nprint(10)\n```\n\n```text\n10\n```\n\n"
        "![Output of the cell above](one-1-0.png)\n\n<div><b>a</b>\n<i>b</i></div>\n"
    )
    assert (tmp_path / "pages" / "one-1-0.png").read_bytes() == b"\x89PNG\r\n\x1a\n"
