"""Rows of predictions, in every form and place, and files that are continued.

Oracle: a run that was never interrupted, and the stub's probabilities computed again.
"""

import csv
import io
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stub_runner import StubRunner

from onsight.cli import main
from onsight.data.decoding_memory import MEMORY
from onsight.errors import ConfigError, DiskError, OutputError
from onsight.inference import predict
from onsight.inference.predict import OutputOptions, predict_files
from onsight.inference.predictor import Prediction, Predictor
from onsight.inference.resumable_file import job_path, rows_path
from onsight.inference.row_formats import CsvFormat, RowColumns

STUB = Path(__file__).with_name("stub_runner.py")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model file whose content is how many seconds the stub takes for a batch."""
    monkeypatch.setattr(predict, "load", lambda model, **options: Predictor(StubRunner()))
    (tmp_path / "model").write_text("0")
    return tmp_path / "model"


@pytest.fixture
def images(tmp_path):
    """Three dozen images, with broken ones among them, one of a name with a line's end."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(36):
        path = folder / (f"{number:02d}.png" if number % 7 else f'{number:02d},\n"x"\r.png')
        Image.fromarray(np.full((4, 4), number * 7, np.uint8)).save(path)
        if number in (0, 5, 6, 20, 21, 22, 35):
            path.write_bytes(b"broken")
    return folder


def interrupted(monkeypatch, batches):
    """The stub stops after so many batches, as if by Ctrl-C."""
    stub = StubRunner(stop_after=batches)
    monkeypatch.setattr(predict, "load", lambda model, **options: Predictor(stub))


def whole(monkeypatch, **options):
    stub = StubRunner(**options)
    monkeypatch.setattr(predict, "load", lambda model, **options: Predictor(stub))
    return stub


def probabilities(number, batch):
    light = number * 7 / 255
    shares = np.array([1 - light, 0.3, light]) + 0.001 * batch
    return shares / shares.sum()


def test_batches_have_equal_numbers_of_usable_images(model, images, monkeypatch, capsys):
    stub = whole(monkeypatch)
    predict_files(model, [str(images)], OutputOptions(as_json=True))
    assert stub.sizes == [4] * 7 + [1]
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["used"], facts["problems"]) == (36, 29, 7)
    for number, row in enumerate(facts["predictions"]):
        assert Path(row["path"]).name[:2] == f"{number:02d}"
        assert (row["problem"] is None) == (row["predicted"] is not None)
        batch = 1 if number == 34 else 4
        if not row["problem"]:
            expected = probabilities(number, batch)
            assert row["predicted"] == StubRunner.classes[expected.argmax()]
            assert row["probability"] == pytest.approx(expected.max(), abs=1e-6)


def test_many_unusable_inputs_end_a_batch(model, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.png").write_bytes(b"broken")
    Image.new("L", (4, 4)).save(tmp_path / "good.png")
    good, broken = str(tmp_path / "good.png"), str(tmp_path / "broken.png")
    stub = whole(monkeypatch)
    predict_files(model, [good, *[broken] * 100, good], OutputOptions(as_json=True))
    assert stub.sizes == [1, 1]
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 102


def test_a_class_name_that_is_not_utf8_is_escaped_in_parquet(model, images, tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(StubRunner, "classes", ("a\udcff", "b", "c"))
    predict_files(model, [str(images)], OutputOptions(parquet=tmp_path / "a.parquet", top=3))
    rows = arrow.read_table(tmp_path / "a.parquet").to_pylist()
    names = {named["class"] for row in rows for named in row["probabilities"] or []}
    assert names == {"a\\xff", "b", "c"}


def test_all_formats_have_the_same_content(model, images, tmp_path, capsys):
    arrow = pytest.importorskip("pyarrow.parquet")
    wanted = {"top": 5, "min_confidence": 0.5}
    paths = {name: tmp_path / f"out.{name}" for name in ("csv", "jsonl", "parquet")}
    files = {name: str(path) for name, path in paths.items()}
    files["parquet"] = paths["parquet"]
    predict_files(model, [str(images)], OutputOptions(as_json=True, **files, **wanted))
    facts = json.loads(capsys.readouterr().out)
    rows = facts["predictions"]
    assert facts["unsure"] == sum(row["unsure"] is True for row in rows) > 0
    assert [json.loads(line) for line in paths["jsonl"].read_text().splitlines()] == rows
    stored = arrow.read_table(paths["parquet"]).to_pylist()
    assert stored == rows
    with open(paths["csv"], newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for cells, row in zip(table, rows, strict=True):
        assert cells["path"] == row["path"]
        assert cells["problem"] == (row["problem"] or "")
        assert cells["predicted"] == (row["predicted"] or "")
        if row["problem"]:
            assert row["unsure"] is None
            assert row["probabilities"] is None
            assert cells["class_1"] == cells["probability_3"] == cells["unsure"] == ""
            continue
        assert row["unsure"] == (row["probability"] < 0.5) == (row["predicted"] is None)
        assert cells["unsure"] == str(row["unsure"]).lower()
        best = row["probabilities"]
        assert best[0]["probability"] == row["probability"]
        assert [row_class["probability"] for row_class in best] == sorted(
            (row_class["probability"] for row_class in best), reverse=True
        )
        assert {row_class["class"] for row_class in best} == set(StubRunner.classes)
        for place, row_class in enumerate(best, 1):
            assert cells[f"class_{place}"] == row_class["class"]
            assert cells[f"probability_{place}"] == f"{row_class['probability']:.6f}"


def test_text_lines_mark_unsure_predictions(model, images, capsys):
    paths = [str(images / f"{number:02d}.png") for number in (1, 5, 18)]
    predict_files(model, paths, OutputOptions(min_confidence=0.6, top=2))
    printed = capsys.readouterr()
    dark, broken, unsure = printed.out.splitlines()
    shares = probabilities(1, 2)
    assert dark == (
        f"dark     {shares[0]:.2%}  {paths[0]}  (dark {shares[0]:.2%}, middle {shares[1]:.2%})"
    )
    assert broken.split()[:2] == ["-", "-"]
    assert "not an image" in broken
    assert unsure.startswith("unsure  ")
    assert "1 predicted, 1 unsure, 1 could not be used; 3 in " in printed.err
    assert " images/s" in printed.err


def test_an_image_that_never_fits_in_memory_has_the_reason_in_its_row(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(MEMORY, "_total_bytes", 10_000)
    Image.fromarray(np.zeros((60, 60), np.uint8)).save(tmp_path / "large.png")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(model), str(tmp_path / "large.png"), "--json"])
    assert stop.value.code == 2
    assert "set ONSIGHT_DECODE_GIGABYTES" in capsys.readouterr().err


def test_a_name_stays_on_its_line_and_cannot_steer_the_terminal(model, tmp_path, capsys):
    path = tmp_path / "a\x1b[2J\n.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    predict_files(model, [str(path)], OutputOptions())
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("a\\x1b[2J\\n.png")


def test_tables_cannot_steer_the_terminal_but_keep_names_in_a_pipe(
    model, tmp_path, capsysbinary, monkeypatch
):
    path = tmp_path / "a\x1b[2J.png"
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(path)
    predict_files(model, [str(path)], OutputOptions(csv="-"))
    assert b"\x1b[2J" in capsysbinary.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    predict_files(model, [str(path)], OutputOptions(csv="-"))
    out = capsysbinary.readouterr().out
    assert b"\\x1b[2J.png" in out
    assert b"\x1b" not in out


def test_nothing_usable_ends_with_the_first_reason(model, tmp_path, capsys):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"broken")
    words = ["predict", str(model), str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--csv", str(tmp_path / "out.csv")])
    assert stop.value.code == 2
    assert "none of the 2 inputs can be used: " in capsys.readouterr().err
    assert (tmp_path / "out.csv").read_text().count("not an image") == 2


# ------------------------------------------------------------------ resume


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_cut_anywhere_is_continued_to_the_same_bytes(
    model, images, tmp_path, monkeypatch, form
):
    out = tmp_path / "out"
    wanted = {form: str(out), "top": 2, "min_confidence": 0.45}
    predict_files(model, [str(images)], OutputOptions(**wanted))
    expected = out.read_bytes()
    out.unlink()
    interrupted(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        predict_files(model, [str(images)], OutputOptions(**wanted))
    assert not out.exists()
    assert expected.startswith(rows_path(out).read_bytes())
    job = job_path(out).read_bytes()
    skipped = set()
    for cut in [*range(0, len(expected), len(expected) // 40), len(expected)]:
        rows_path(out).write_bytes(expected[:cut])
        job_path(out).write_bytes(job)
        stub = whole(monkeypatch)
        predict_files(model, [str(images)], OutputOptions(resume=True, **wanted))
        assert out.read_bytes() == expected
        assert not rows_path(out).exists()
        assert not job_path(out).exists()
        skipped.add(len(stub.sizes))
        out.unlink()
    assert skipped == set(range(1, 9))  # batches computed again


def test_a_name_like_a_formula_is_marked_in_a_csv_and_continued(
    model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = [f"=1+{number}.png" for number in range(12)]
    for name in names:
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(name)
    predict_files(model, names, OutputOptions(csv="whole.csv"))
    with open("whole.csv", newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == [f"./{name}" for name in names]
    interrupted(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        predict_files(model, names, OutputOptions(csv="out.csv"))
    stub = whole(monkeypatch)
    predict_files(model, names, OutputOptions(csv="out.csv", resume=True))
    assert len(stub.sizes) == 2
    assert Path("out.csv").read_bytes() == Path("whole.csv").read_bytes()
    predict_files(model, ["whole.csv"], OutputOptions(as_json=True))  # the table as a manifest
    assert json.loads(capsys.readouterr().out)["used"] == 12


def test_a_class_like_a_formula_is_marked_in_a_csv_alone():
    columns = RowColumns(("=cmd()", "-1"), top=2)
    rows = [Prediction("a.png", "=cmd()", 0.75, None, np.array([0.75, 0.25], np.float32))]
    text = CsvFormat(columns).rows(rows).decode()
    assert text == "a.png,'=cmd(),0.750000,,,,'=cmd(),0.750000,-1,0.250000\n"
    ((row, _),) = CsvFormat(columns).read(io.BytesIO(text.encode()))
    assert row.predicted == "=cmd()"
    assert columns.record(rows[0])["predicted"] == "=cmd()"


def test_images_that_have_a_row_are_not_decoded_again(model, images, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    interrupted(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        predict_files(model, [str(images)], OutputOptions(csv=str(out)))
    known = rows_path(out).read_bytes()
    (images / "02.png").write_bytes(b"gone")
    whole(monkeypatch)
    predict_files(model, [str(images)], OutputOptions(csv=str(out), resume=True))
    assert out.read_bytes().startswith(known)
    assert "02.png,dark" in out.read_text()


@pytest.mark.parametrize("top", [0, -1])
def test_at_least_one_class_is_requested(model, images, capsys, top):
    with pytest.raises(SystemExit) as exit_:
        main(["predict", str(model), str(images), "--top", str(top)])
    assert exit_.value.code == 2
    assert f"--top {top} must be at least 1" in capsys.readouterr().err


def test_resuming_a_different_job_is_refused_and_nothing_is_lost(
    model, images, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out.csv"
    interrupted(monkeypatch, 4)
    with pytest.raises(SystemExit):
        main(["predict", str(model), str(images), "--csv", str(out)])
    assert "to continue, repeat the command with --resume" in capsys.readouterr().err
    kept = rows_path(out).read_bytes()
    stub = whole(monkeypatch)

    def refused(error, message, inputs=images, **changed):
        options = {"csv": str(out), "resume": True, **changed}
        with pytest.raises(error, match=message):
            predict_files(model, [str(inputs)], OutputOptions(**options))
        assert rows_path(out).read_bytes() == kept

    refused(OutputError, "interrupted run: add --resume", resume=False)
    refused(OutputError, "started with columns", top=2)
    refused(OutputError, "started with columns", min_confidence=0.5)
    refused(OutputError, "started with format csv", csv=None, jsonl=str(out))
    refused(OutputError, "(?s)number 1 was .*, now it is", inputs=images / "01.png")
    refused(ConfigError, "--resume continues a single file", parquet=tmp_path / "x.parquet")
    refused(ConfigError, "--resume continues a single file", csv=None)
    refused(ConfigError, "--resume continues a single file", as_json=True)
    stub.batch_size = 5
    refused(OutputError, "started with batch size")
    whole(monkeypatch)
    previous = model.read_bytes()
    model.write_bytes(b"another")
    refused(OutputError, "started with model")
    model.write_bytes(previous)
    for path in sorted(images.iterdir())[8:]:
        path.unlink()
    refused(OutputError, "(?s)number 9 was .*, now there are 8 inputs")
    out.touch()
    rows_path(out).unlink()
    job_path(out).unlink()
    with pytest.raises(OutputError, match="nothing to resume"):
        predict_files(model, [str(images)], OutputOptions(csv=str(out), resume=True))


def test_a_run_killed_right_after_the_rename_is_complete(
    model, images, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out.csv"
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
    predict_files(model, [str(images)], OutputOptions(csv=str(out)))
    monkeypatch.undo()
    assert job_path(out).exists()
    whole(monkeypatch)
    predict_files(model, [str(images)], OutputOptions(csv=str(out), resume=True))
    assert "is complete" in capsys.readouterr().err
    assert not job_path(out).exists()


def test_a_file_written_among_the_images_is_not_an_input(model, images):
    out = images / "zz.csv"
    predict_files(model, [str(images)], OutputOptions(csv=str(out)))
    assert "zz.csv" not in out.read_text()
    with pytest.raises(OutputError, match=r"--csv would replace .*zz.csv in the input"):
        predict_files(model, [str(images)], OutputOptions(csv=str(out)))


def test_files_that_only_look_like_ours_are_left_alone(model, images, tmp_path, capsys):
    out = tmp_path / "k.csv"
    mine = [tmp_path / name for name in ("k.csv.partial", "k.csv.partial.json", ".k.csv.1.tmp")]
    for path in mine:
        path.write_text("mine")
    predict_files(model, [str(images)], OutputOptions(csv=str(out)))
    assert [path.read_text() for path in mine] == ["mine"] * 3
    for foreign, text in (
        (rows_path(out), "path,predicted\nmine"),
        (job_path(out), "mine"),
        (job_path(out), '["mine"]'),
        (job_path(out), ""),
        (job_path(out), "[" * 100_000),
    ):
        foreign.write_text(text)
        out.unlink(missing_ok=True)
        for resume in (False, True):
            options = OutputOptions(csv=str(out), resume=resume)
            with pytest.raises(OutputError, match=f"{foreign} was not written by Onsight"):
                predict_files(model, [str(images)], options)
            assert foreign.read_text() == text
        foreign.unlink()
    for foreign, error in ((rows_path(out), DiskError), (job_path(out), OutputError)):
        os.mkfifo(foreign)
        with pytest.raises(error, match=str(foreign)):
            predict_files(model, [str(images)], OutputOptions(csv=str(out), resume=True))
        foreign.unlink()
    rows_path(out).symlink_to(mine[0])
    with pytest.raises(DiskError, match="cannot write"):
        predict_files(model, [str(images)], OutputOptions(csv=str(out)))
    assert mine[0].read_text() == "mine"


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, STUB, "predict", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    )


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_killed_at_random_instants_and_resumed(tmp_path, kills):
    model, out = tmp_path / "model", tmp_path / "out.csv"
    model.write_text("0.005")
    Image.new("L", (4, 4), 9).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    names = random.Random(3).choices(["a.png\n", "b.png\n", "missing.png\n"], [8, 1, 1], k=600)
    (tmp_path / "list").write_text("".join(names))
    words = [model, "-", "--csv", out]

    def begin(*more):
        with open(tmp_path / "list") as listed:
            return command(*words, *more, cwd=tmp_path, stdin=listed)

    _, message = (whole := begin()).communicate()
    assert whole.returncode == 0, message
    expected = out.read_bytes()
    out.unlink()
    draw = random.Random(5)
    for _ in range(kills):
        least = draw.randrange(len(expected))
        process = begin("--resume")
        while process.poll() is None:
            if rows_path(out).exists() and rows_path(out).stat().st_size > least:
                process.kill()
                break
            time.sleep(0.001)
        process.communicate()
    if not out.exists():
        process = begin("--resume")
        _, message = process.communicate()
        assert process.returncode == 0, message
    assert out.read_bytes() == expected


def test_an_exported_model_needs_no_training_libraries(tmp_path):
    (tmp_path / "model").write_text("0")
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    words = ["--csv", tmp_path / "out.csv", "--jsonl", tmp_path / "out.jsonl", "--json"]
    process = command(tmp_path / "model", tmp_path / "a.png", "--top", 2, *words)
    _, message = process.communicate()
    assert process.returncode == 0, message.decode()
    process = command(tmp_path / "model", tmp_path / "a.png", "--save-grid", tmp_path / "x.png")
    assert b"matplotlib is blocked" in process.communicate()[1]  # the block blocks
