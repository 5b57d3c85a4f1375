"""docs/python.md proves what it says: each Python block prints the text block below it."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_blocks_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "text"] * 4
    names, printed = {}, ""
    for language, text in blocks:
        if language == "text":
            assert printed == text
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(text, str(PAGE), "exec"), names)
        printed = output.getvalue()
