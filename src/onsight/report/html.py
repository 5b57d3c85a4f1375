"""report.html: one page that opens offline, made only from the files of a run folder.

page.py chooses the numbers and sentences; report.html.jinja decides how they look.
"""

import base64
import hashlib
from pathlib import Path

import jinja2

from onsight.errors import OutputError
from onsight.files import write_atomically
from onsight.report import filters
from onsight.report.page import contents_of, page_of
from onsight.report.sound import sound_contents
from onsight.report.template import page_template
from onsight.words import data_size, duration, percent, plural


def write_report(run: Path) -> Path:
    """Write report.html from the other files of a run folder, and return its path.

    A missing or unreadable file leaves out its section, and so does a value of a wrong type, which
    is named. Raises OutputError for a folder without a run, DiskError.
    """
    if not any((run / name).is_file() for name in ("results.json", "metrics.jsonl", "config.toml")):
        raise OutputError(f"{run} is not a run folder: it has no results, metrics or config")
    template = page_template(
        "onsight.report",
        "report.html.jinja",
        percent=percent,
        count=filters.whole,
        number=filters.number,
        duration=duration,
        size=data_size,
        plural=plural,
        plain=filters.plain,
        ending=filters.path_end,
        sha256=_sha256,
    )
    page = _render(run, template)
    target = run / "report.html"
    # A path that is not UTF-8 is shown with escapes.
    write_atomically(target, page.encode("utf-8", "backslashreplace"))
    return target


def _render(run: Path, template: jinja2.Template) -> str:
    contents = contents_of(run)
    try:
        return template.render(page_of(run, contents), damaged=[])
    except Exception:  # a value of a wrong type may raise anything, wherever it is used
        sound, damaged = sound_contents(
            contents, lambda tried: template.render(page_of(run, tried), damaged=[])
        )
        return template.render(page_of(run, sound), damaged=damaged)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
