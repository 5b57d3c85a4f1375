"""What the tests of all packages share; it imports none of them: the linter needs no torch."""

import fcntl
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.hookimpl(optionalhook=True)  # without xdist, there is no such hook
def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait for the processes they start."""
    from onsight_explain.threads import usable_cores

    return usable_cores() + 1


gc.set_threshold(20_000, 20, 20)  # to look for cycles after each 700 objects takes a tenth longer


def pytest_collection_finish():
    """Let Python never look for cycles among what was imported."""
    gc.freeze()


def pytest_unconfigure():
    """Let libraries that look for leaks at the end find none."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """Files need not survive a power cut here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def build_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Build an expensive folder once for all test processes: `build_once(name, build) -> Path`.

    `build` fills the empty folder it is given; nobody changes it afterwards. Tests in other
    processes wait for it. If it raises, the next test that needs the folder tries again.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # every worker has a folder of its own inside the run's
    shared = base / "shared"
    shared.mkdir(exist_ok=True)

    def build_once(name: str, build: Callable[[Path], object]) -> Path:
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = shared / f"{name}.done"
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                build(folder)
                done.touch()
        return folder

    return build_once


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch):
    """The working directory, where files have the names of modules; none may be imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("typing", "json", "struct", "numpy", "torch"):
        text = f"open({str(folder / 'imported')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    yield folder
    assert not (folder / "imported").exists(), (folder / "imported").read_text()
