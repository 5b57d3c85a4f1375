"""Which run a job of torchrun goes on with when its ranks are started again."""

import pytest

from onsight.errors import ConfigError
from onsight.training.run_folder import find_run_of_job, write_job_id


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "ONSIGHT_STORE"):
        monkeypatch.delenv(name, raising=False)


def begin(folder, job, monkeypatch, config=True):
    """A run folder as the ranks of a job have left it."""
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", job)
        write_job_id(folder)
    if config:
        (folder / "config.toml").write_text("")
    return folder


def test_a_job_goes_on_with_its_own_run(tmp_path, monkeypatch):
    begin(tmp_path / "runs" / "a", "one", monkeypatch)
    mine = begin(tmp_path / "runs" / "b", "two", monkeypatch)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    assert find_run_of_job(None).resolve() == mine
    assert find_run_of_job(mine) == mine
    assert find_run_of_job(tmp_path / "runs" / "a") is None


def test_a_run_that_has_not_begun_begins_now(tmp_path, monkeypatch):
    claimed = begin(tmp_path / "run", "one", monkeypatch, config=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert find_run_of_job(claimed) is None
    assert find_run_of_job(None) is None


def test_without_a_name_only_a_restart_tells(tmp_path, monkeypatch):
    run = begin(tmp_path / "run", "none", monkeypatch)
    assert not (run / ".job").exists()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert find_run_of_job(run) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert find_run_of_job(run) == run
    with pytest.raises(ConfigError, match="--out"):
        find_run_of_job(None)


def test_onsights_own_launcher_says_it_itself(tmp_path, monkeypatch):
    run = begin(tmp_path / "run", "one", monkeypatch)
    monkeypatch.setenv("ONSIGHT_STORE", "127.0.0.1:1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert find_run_of_job(run) is None
