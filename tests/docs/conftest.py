"""The workspace and programs for the pages' examples; `workspace.py` describes the workspace."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from workspace import make_workspace

# Variables of the user that pages must not see; their cache is in their own home.
_HIDDEN = ("COLUMNS", "LINES", "ONSIGHT_CACHE", "XDG_CACHE_HOME")


@pytest.fixture(scope="session")
def page_environment(build_once):
    """The environment of the pages' commands: the programs under test, a home, no downloads."""

    def write_programs(folder: Path) -> None:
        names = {"onsight": "-m onsight", "onsight-lint": "-m onsight_lint"}
        names |= {"onsight-explain": "-m onsight_explain", "python": "", "python3": ""}
        for name, words in names.items():
            (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (folder / name).chmod(0o755)

    programs = build_once("page-programs", write_programs)
    return {
        **{name: text for name, text in os.environ.items() if name not in _HIDDEN},
        "GOMP_SPINCOUNT": "2000",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(build_once("page-home", lambda folder: None)),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture
def page_folder(build_once, page_environment, tmp_path) -> Path:
    """A folder for one page, with images and a finished run."""
    made = build_once("page-workspace", lambda folder: make_workspace(folder, page_environment))
    return shutil.copytree(made, tmp_path / "page")
