"""A job as it travels: what a machine must see, and what a resumed run may be given."""

from dataclasses import replace

import pytest

from onsight.cluster.job import TrainingJob
from onsight.errors import DataError, OutputError

FIELDS = {"model": "lenet", "precision": "auto", "threads": 2, "recipe": "lenet", "device": "cpu"}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    return TrainingJob(
        str(tmp_path / "data"), True, str(tmp_path / "run"), False, 0.0, dict(FIELDS)
    )


def test_what_a_machine_does_not_see_is_named(job, tmp_path):
    job.check_visible("n7")
    (tmp_path / "data").rmdir()
    with pytest.raises(DataError, match=r"data does not exist on n7; put it on storage"):
        job.check_visible("n7")
    replace(job, data="demo", is_path=False).check_visible("n7")
    (tmp_path / "run").rmdir()
    with pytest.raises(OutputError, match=r"the run folder .*run does not exist on n7"):
        replace(job, is_path=False).check_visible("n7")


def test_a_run_that_goes_on_by_itself_keeps_its_settings(job):
    assert job.arguments(resume=False) == FIELDS
    assert job.arguments(resume=True) == {"threads": 2, "device": "cpu"}
    own = replace(job, fields={"model": "package.module:Net", "epochs": 3})
    assert own.arguments(resume=True) == {"model": "package.module:Net"}
    assert replace(job, resume=True).arguments(resume=True) == FIELDS  # the user will be told


def test_checkpoints_are_told_apart(job, tmp_path):
    assert (job.checkpoint_version, job.is_started) == ("", False)
    (tmp_path / "run" / "config.toml").touch()
    (tmp_path / "run" / "checkpoints").mkdir()
    file = tmp_path / "run" / "checkpoints" / "last.safetensors"
    file.write_bytes(b"1")
    first = job.checkpoint_version
    assert job.is_started
    assert first == job.checkpoint_version
    file.write_bytes(b"12")
    assert job.checkpoint_version != first
