"""Checkpoints copied to a second place: whole or not at all, and a run goes on from them."""

import fsspec
import pytest

import onsight
from onsight.errors import ConfigError, Interrupted, OutputError
from onsight.files import is_unfinished
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import trainer
from onsight.training.run_folder import RunFolder
from onsight.training.saving import Mirror, check_unused, restore_checkpoints

FAST = {
    "model": "lenet",
    "image_size": "16",
    "batch_size": 16,
    "epochs": 3,
    "threads": 1,
    "plan": "default",
    "precision": "fp32",
    "folds": 1,
    "reporter": SilentReporter(),
}


@pytest.fixture(params=["memory", "folder"])
def url(request, tmp_path):
    if request.param == "memory":
        yield "memory://kept/run"
        fsspec.filesystem("memory").store.clear()
    else:
        yield str(tmp_path / "kept" / "run")


@pytest.fixture
def run(tmp_path):
    """A run folder with a config and a checkpoint."""
    folder = RunFolder(tmp_path / "run", None, resumed=False)
    folder.make_checkpoints()
    (folder.path / "config.toml").write_text("epochs = 3\n")
    folder.last_checkpoint.write_bytes(b"first")
    return folder


def stop_after(monkeypatch, epochs):
    """Stop a run as a signal does, once it has come so far."""
    real = trainer.Trainer._end_epoch

    def end_epoch(self, images):
        real(self, images)
        if self.progress.epoch == epochs:
            self.world.stop.signal_number = 15

    monkeypatch.setattr(trainer.Trainer, "_end_epoch", end_epoch)


def test_what_was_kept_comes_back(url, run, tmp_path):
    Mirror(url, run).copy(run.last_checkpoint)
    run.last_checkpoint.write_bytes(b"second")
    Mirror(url, run).copy(run.last_checkpoint)
    assert restore_checkpoints(url, tmp_path / "again")
    found = {p.relative_to(tmp_path / "again").as_posix() for p in tmp_path.glob("again/**/*.*")}
    assert found == {"config.toml", "checkpoints/last.safetensors"}
    assert (tmp_path / "again/checkpoints/last.safetensors").read_bytes() == b"second"


def test_what_a_fold_and_its_run_have_decided_comes_back(url, run, tmp_path):
    member = run.of_part("members", "sprint")
    fold = member.of_part("folds", "1")
    fold.make_checkpoints()
    names = ["config.toml", "plan.json", "decisions.jsonl"]
    written = [part.path / name for part in (run, member, fold) for name in names]
    for number, path in enumerate([*written, fold.last_checkpoint]):
        path.write_text(str(number))
    Mirror(url, fold).copy(fold.last_checkpoint)
    assert restore_checkpoints(url, tmp_path / "again")
    for number, path in enumerate([*written, fold.last_checkpoint]):
        assert (tmp_path / "again" / path.relative_to(run.path)).read_text() == str(number)


def test_there_may_be_nothing(url, tmp_path):
    assert not restore_checkpoints(url, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_server_cannot_name_a_file_outside_the_run_folder(run, tmp_path, monkeypatch):
    url, filesystem = "memory://kept/run", fsspec.filesystem("memory")
    Mirror(url, run).copy(run.last_checkpoint)
    filesystem.pipe_file("/kept/evil", b"theirs")
    names = ["/kept/run/config.toml", "/kept/run/../evil"]
    monkeypatch.setattr(filesystem, "find", lambda root: names)
    with pytest.raises(OutputError, match=r"\.\./evil, which would be written outside"):
        restore_checkpoints(url, tmp_path / "again")
    assert not (tmp_path / "evil").exists()
    filesystem.store.clear()


def test_a_copy_that_breaks_off_leaves_the_former_one(url, run, tmp_path, monkeypatch):
    mirror = Mirror(url, run)
    mirror.copy(run.last_checkpoint)
    run.last_checkpoint.write_bytes(b"second")

    def breaks_off(source, target, **options):
        mirror.filesystem.pipe_file(target, b"sec")
        raise OSError("connection lost")

    with monkeypatch.context() as broken:
        broken.setattr(mirror.filesystem, "put_file", breaks_off)
        with pytest.raises(OSError, match="connection lost"):
            mirror.copy(run.last_checkpoint)
    left = mirror.filesystem.find(mirror.path)
    assert left
    assert not any(is_unfinished(name.rpartition("/")[2]) for name in left)
    assert restore_checkpoints(url, tmp_path / "again")
    assert (tmp_path / "again/checkpoints/last.safetensors").read_bytes() == b"first"


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_run_whose_folder_is_lost_goes_on_bit_for_bit(url, shared_bars, tmp_path, monkeypatch):
    whole = onsight.train(shared_bars, out=tmp_path / "whole", **FAST)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Interrupted):
            onsight.train(shared_bars, out=tmp_path / "lost", checkpoints=url, **FAST)
    again = {"resume": True, "checkpoints": url, "reporter": SilentReporter()}
    run = onsight.train(shared_bars, out=tmp_path / "new", **again)
    mine, theirs = (read_tensors(one.model)[0] for one in (whole, run))
    assert all(mine[name].equal(theirs[name]) for name in mine)


def test_the_place_of_another_run_is_refused(url, run, shared_bars, tmp_path):
    Mirror(url, run).copy(run.last_checkpoint)
    with pytest.raises(OutputError, match="holds the checkpoints of a run"):
        onsight.train(shared_bars, out=tmp_path / "new", checkpoints=url, **FAST)
    assert not (tmp_path / "new").exists()


def test_a_run_outlives_trouble_with_the_second_place(shared_bars, tmp_path, monkeypatch):
    said = []

    class Listening(SilentReporter):
        def warn(self, text):
            said.append(text)

    def refuse(self, file):
        raise OSError("connection lost")

    monkeypatch.setattr(Mirror, "_upload", refuse)
    fields = FAST | {"reporter": Listening(), "epochs": 1}
    run = onsight.train(shared_bars, out=tmp_path / "run", checkpoints="memory://x", **fields)
    assert run.model.exists()
    assert any("last.safetensors was not copied to memory://x: connection lost" in t for t in said)


def test_files_of_others_in_the_second_place_stay(run, tmp_path):
    kept = tmp_path / "kept"
    names = (".last.safetensors.tmp", ".onsight-0123456789abcdef.tmp")
    mine, left = (kept / "checkpoints" / name for name in names)
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    left.write_text("from a killed process")
    with pytest.raises(OutputError, match="holds the checkpoints"):
        check_unused(str(kept))
    Mirror(str(kept), run).copy(run.last_checkpoint)
    assert mine.read_text() == "mine"
    assert {one.name for one in mine.parent.iterdir()} == {mine.name, "last.safetensors"}


def test_an_unknown_kind_of_url_is_refused(shared_bars, tmp_path):
    with pytest.raises(ConfigError, match="--checkpoints nowhere://x"):
        onsight.train(shared_bars, out=tmp_path / "new", checkpoints="nowhere://x", **FAST)
