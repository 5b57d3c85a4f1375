"""What somebody else's run folder says runs no code and is written nowhere but in the run."""

import json
import shutil

import pytest

import onsight
from onsight.config_files import read_config_file
from onsight.errors import ConfigError, ImagesChanged, OutputError
from onsight.report.console import SilentReporter
from onsight.training import layout
from onsight.tune.candidates import Candidate

PLAIN = {"epochs": 1, "batch_size": 16, "threads": 1}
CODE = "planted_network:Net"


@pytest.fixture(autouse=True)
def planted_code(tmp_path, monkeypatch):
    """A module in the current folder that leaves a mark when it is imported."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "planted_network.py").write_text("open('imported', 'w')\nfrom torch.nn import Linear")
    yield
    assert not (work / "imported").exists()


@pytest.fixture
def theirs(tmp_path):
    """A folder as somebody sends it: the settings and decisions of a finished run."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.toml").write_text('model = "auto"\nepochs = 1\nbatch_size = 16\n')
    return folder


def candidate(**changed):
    fields = {"name": "x", "fields": {"model": "lenet"}, "share": 0.5, "image_size": [16, 16]}
    return fields | changed


def write_decisions(folder, *candidates):
    values = {
        "candidates": {"candidates": candidates, "height": 16, "width": 16},
        "members": ["x", "y"],
    }
    lines = [{"decision": name, "value": value} for name, value in values.items()]
    (folder / "decisions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def train(data, out, **options):
    return onsight.train(data, out=out, reporter=SilentReporter(), **options)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"fields": {"model": CODE}}, "code named by a file is not run"),
        (
            {"fields": {"checkpoints": "/elsewhere"}},
            "only freeze, head_images, model and pretrained differ",
        ),
        ({"name": "../../../victim"}, "cannot have this name"),
        ({"share": -1.0}, "greater than 0"),
        ({"image_size": [16]}, "image_size.1"),
        ({"image_size": [16, 10**9]}, "less than 100000"),
    ],
)
def test_decisions_choose_nothing_that_a_run_would_not(bars, tmp_path, theirs, changed, reason):
    write_decisions(theirs, candidate(**changed), candidate(name="y"))
    with pytest.raises(ConfigError, match=rf"decisions.jsonl has been changed.*{reason}"):
        train(bars, tmp_path / "mine", config_file=theirs / "config.toml")
    assert not (tmp_path / "victim").exists()


def test_the_settings_of_a_member_name_no_code(bars, tmp_path, theirs):
    write_decisions(theirs, candidate(), candidate(name="y"))
    member = theirs / "members" / "x"
    member.mkdir(parents=True)
    (member / "config.toml").write_text(f'model = "{CODE}"\n')
    with pytest.raises(ConfigError, match="the config names code"):
        train(bars, tmp_path / "mine", config_file=theirs / "config.toml")


def test_the_settings_of_a_member_name_no_place(bars, tmp_path, theirs, monkeypatch):
    mine = tuple(Candidate(name, {"model": "lenet"}, 0.5, (16, 16)) for name in ("x", "y"))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: mine)
    write_decisions(theirs, candidate(), candidate(name="y"))
    member = theirs / "members" / "x"
    member.mkdir(parents=True)
    place = tmp_path / "place"
    (member / "config.toml").write_text(f'model = "lenet"\nepochs = 1\ncheckpoints = "{place}"\n')
    run = train(bars, tmp_path / "mine", config_file=theirs / "config.toml")
    assert read_config_file(run.path / "members" / "x" / "config.toml")["checkpoints"] == ""
    assert not place.exists()


@pytest.mark.parametrize("name", ["checkpoints", "cache_folder"])
def test_a_resumed_run_writes_where_the_user_says(bars, tmp_path, name):
    out, place = tmp_path / "run", tmp_path / "place"
    run = train(bars, out, model="lenet", **PLAIN, **{name: str(place)})
    for path in (run.model, out / "results.json"):
        path.unlink()
    shutil.rmtree(place)
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        train(bars, out, resume=True)
    assert not place.exists()
    train(bars, out, resume=True, **{name: str(place)})
    assert read_config_file(out / "config.toml")[name] == str(place)


@pytest.fixture(scope="module")
def finished(shared_bars, train_once):
    """A finished run; do not modify its folder."""
    return train_once("strangers", shared_bars, report=False, model="lenet", **PLAIN)


@pytest.mark.parametrize("link", ["checkpoints", "folds/1", "decisions.jsonl", "members"])
def test_a_run_is_not_resumed_through_links(finished, bars, tmp_path, link):
    victim = tmp_path / "victim"
    out = shutil.copytree(finished.path, tmp_path / "run")
    (out / "model.safetensors").unlink()
    if (out / link).exists():
        shutil.rmtree(out / link)
    victim.mkdir()
    (victim / "thesis.pt").write_text("years of work")
    (out / link).parent.mkdir(exist_ok=True)
    (out / link).symlink_to(victim)
    with pytest.raises(OutputError, match=f"{link} is a link"):
        train(bars, out, resume=True)
    assert {path.name for path in victim.iterdir()} == {"thesis.pt"}


@pytest.mark.parametrize("fields", [{"model": "auto"}, {"model": "lenet"}])
def test_a_finished_run_is_kept_if_it_is_resumed_with_other_images(
    bars, tmp_path, monkeypatch, fields
):
    mine = tuple(Candidate(name, {"model": "lenet"}, 0.5, (16, 16)) for name in ("x", "y"))
    monkeypatch.setattr(layout, "choose_candidates", lambda *_: mine)
    out, others = tmp_path / "run", tmp_path / "others"
    train(bars, out, **PLAIN, **fields)
    shutil.copytree(bars, others)
    for path in sorted(others.rglob("*.png"))[::3]:
        path.unlink()
    shutil.rmtree(out / "checkpoints")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ImagesChanged):
        train(others, out, resume=True)
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert before == after
