"""No settings of threads."""

import os
from pathlib import Path

import pytest

from onsight_explain.delivery.fixed_script import suggested_changes
from onsight_explain.script.thread_settings import UNSET
from onsight_explain.script.trace import ThreadSetting
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.thread_settings import ThreadSettings

SOURCE = 'import os\nos.environ["GOMP_SPINCOUNT"] = "0"\nimport torch\n'


@pytest.fixture
def settings(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SOURCE, encoding="utf-8")
    return [
        ThreadSetting(name="GOMP_SPINCOUNT", value="0", site=Site(file=str(script), line=2)),
        ThreadSetting(name="OMP_WAIT_POLICY", value="active", site=None),
    ]


def test_tried_if_there_are_any(seen, settings):
    assert ThreadSettings.worth(seen()) == []
    assert ThreadSettings.worth(seen(thread_settings=settings)) == [ThreadSettings(True)]


def test_the_process_is_started_without_them_and_may_use_every_core(apply):
    environment = ThreadSettings(True).environment
    assert environment["GOMP_SPINCOUNT"] == environment["OMP_PROC_BIND"] == UNSET
    before = os.sched_getaffinity(0)
    apply(thread_settings=True)
    os.sched_setaffinity(0, {min(before)})
    assert os.sched_getaffinity(0) == before


def test_cause_and_lines_name_where_they_are_set(seen, settings):
    trace, what_if = seen(thread_settings=settings).trace, ThreadSettings(True)
    cause = what_if.cause(trace)
    assert cause.name == "threads"
    assert "GOMP_SPINCOUNT=0, at train.py:2 and OMP_WAIT_POLICY=active, in" in cause.sentence
    script = settings[0].site.file
    lines = suggested_changes(what_if.lines(trace), Path(script))
    assert lines[0].text.startswith("remove this line, which sets GOMP_SPINCOUNT=0")
    assert lines[1].text == "start it without OMP_WAIT_POLICY=active: unset OMP_WAIT_POLICY"
