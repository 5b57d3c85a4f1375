"""A round of `soak/weather.py`, and that each of its checks notices a broken promise."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weather
from onsight.tensorfile import read_tensors, write_tensors
from weather import Finished, Weather

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return shutil.copytree(trained.path, tmp_path / "run")


def test_a_round_in_bad_weather(tmp_path):
    drawn = Weather(
        0,
        "steps",
        "own",
        1,
        earlier="check",
        cache="XDG_CACHE_HOME",
        language="tr_TR.UTF-8",
        zone="Pacific/Kiritimati",
        spelling="symbolic",
        shuffles_files=True,
    )
    assert weather.run_round(drawn, tmp_path, weather.keep_references(tmp_path)) == []


def test_weather_follows_from_its_number():
    drawn = [weather.draw(seed) for seed in range(200)]
    assert drawn == [weather.draw(seed) for seed in range(200)]
    for name in ("command", "instructions", "busy", "earlier", "cache", "spelling", "kills"):
        assert len({getattr(each, name) for each in drawn}) > 1, name


def test_one_other_bit_of_the_weights_is_noticed(trained, run):
    assert weather.find_differences(trained.path, run) == []
    tensors, facts = read_tensors(run / "model.safetensors")
    name = next(iter(tensors))
    tensors[name].view(-1)[0] *= 1 + 2**-22
    write_tensors(run / "model.safetensors", tensors, facts)
    assert weather.find_differences(trained.path, run) == [f"other weights: {name}"]


def test_another_split_is_noticed(trained, run):
    tensors, facts = read_tensors(run / "model.safetensors")
    facts["provenance"]["data_key"] = "another"
    write_tensors(run / "model.safetensors", tensors, facts)
    assert weather.find_differences(trained.path, run) == ["other images or another split"]


@pytest.mark.parametrize("name", ["predictions.csv", "problems.csv"])
def test_another_table_is_noticed(trained, run, name):
    with open(run / name, "a") as file:
        file.write("more\n")
    assert weather.find_differences(trained.path, run) == [f"another {name}"]


def test_an_image_that_is_neither_used_nor_listed_is_noticed(trained, bars):
    assert weather.find_unlisted(trained.path, bars) == []
    shutil.copy(bars / "across/000.png", bars / "across/new.png")
    assert weather.find_unlisted(trained.path, bars) == [
        "120 images used and 0 listed, but there are 121 files"
    ]


@pytest.mark.parametrize("change", ["content", "time", "name", "mode"])
def test_a_changed_file_of_the_user_is_noticed(bars, run, change):
    before, path = weather.fingerprint(bars), bars / "across/000.png"
    assert weather.fingerprint(bars) == before
    match change:
        case "content":
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        case "time":
            path.touch()
        case "name":
            path.rename(path.with_name("renamed.png"))
        case "mode":
            path.chmod(0o600)
    ended = Finished(run, "", 0, 1.0)
    found = weather.find_faults(Weather(0, "steps", "own", 1), ended, ended, bars, before)
    assert found == ["a file of the user was changed"]


def test_a_connection_is_noticed(tmp_path):
    notes = tmp_path / "notes"
    code = "import socket; made = socket.socket(); made.settimeout(0.01)\n"
    code += "for address in ('127.0.0.1', '192.0.2.1'):\n"
    code += "    try: made.connect((address, 9))\n    except OSError: pass\n    made.close()\n"
    code += "    made = socket.socket(); made.settimeout(0.01)"
    environment = weather._environment(Weather(0, "steps", "own", 1), tmp_path, notes)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert notes.read_text() == "('192.0.2.1', 9)\n"


def test_a_late_end_must_be_said():
    ended = Finished(Path("run"), "accuracy 90%", 0, 12.0)
    assert weather.find_late(ended, 10.0) == []  # the interpreter ends
    assert weather.find_late(ended, 8.0) == ["4.0 s late, without a word"]
    told = Finished(Path("run"), "note: budget: the run took 4 s longer", 0, 12.0)
    assert weather.find_late(told, 8.0) == []


def test_half_written_files_and_exit_codes_are_noticed(run, bars):
    (run / "checkpoints" / "last.safetensors.tmp").write_text("")
    assert weather.find_leftovers(run) == ["left behind: last.safetensors.tmp"]
    failed = Finished(run, "a Traceback", 1, 1.0)
    assert weather.find_faults(Weather(0, "steps", "own", 1), failed, failed, bars, "") == [
        "exit code 1: a Traceback"
    ]


def test_rounds_are_continued_and_failures_can_be_repeated(tmp_path, monkeypatch, capsys):
    faults = {1: [], 2: ["another split"], 3: []}
    made = []

    def run_round(drawn, folder, reference):
        made.append(drawn.seed)
        return faults[drawn.seed]

    monkeypatch.setattr(weather, "run_round", run_round)
    words = ["--rounds", "3", "--folder", str(tmp_path)]
    assert weather.main(words) == 1
    assert "--rounds 1 --seed 2" in capsys.readouterr().out
    faults[2] = []
    assert weather.main(words) == 0
    assert made == [1, 2, 3, 2]
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == made


def test_every_check_that_the_page_of_promises_names_exists():
    page = (ROOT / "docs/understand/promises.md").read_text()
    files = re.findall(r"`((?:tests|soak|packages)/[\w/.-]+)`", page)
    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).exists()] == []
