"""No command replaces what it reads, whatever flag or link names it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from onsight.cli import main
from onsight.inference import predict
from onsight.inference.predictor import Predictor
from onsight.report.card import CARD_MARK

IMAGE = "data/cats/0.png"
COMMANDS = [  # what is read is named in the last place, and as the file to write
    ["predict", "model", "a.png", "--csv", "model"],
    ["predict", "model", "a.png", "--jsonl", "model"],
    ["predict", "model", "a.png", "--parquet", "model"],
    ["predict", "m.png", "a.png", "--save-grid", "m.png"],
    ["predict", "run", "a.png", "--csv", "run/model.safetensors"],
    ["predict", "m.onnx", "a.png", "--csv", "m.onnx.proof.json"],
    ["predict", "model", "a.png", "--csv", "a.png"],
    ["predict", "model", "a.png", "--save-grid", "a.png"],
    ["predict", "model", "data", "--csv", IMAGE],
    ["predict", "model", "list.csv", "--jsonl", "list.csv"],
    ["embed", "m.npz", "a.png", "--out", "m.npz"],
    ["embed", "model", "data", "--out", "data/old.npz"],
    ["eval", "model", "data", "--csv", "model"],
    ["eval", "run", "data", "--csv", "run/model.safetensors"],
    ["eval", "model", "list.csv", "--csv", "list.csv"],
    ["eval", "model", "data", "--csv", IMAGE],
    ["similar", "m.png", "a.png", "--save-grid", "m.png"],
    ["similar", "model", "a.png", "--save-grid", "a.png"],
    ["predict", "run", "a.png", "--csv", "run/predictions.csv"],
    ["eval", "run", "data", "--csv", "run/predictions.csv"],
    ["similar", "model", "data", "--save-grid", IMAGE],
    ["similar", "model", "a.png", "--among", "data", "--save-grid", IMAGE],
    ["shard", "list.csv", "--out", "shards", "--problems", "list.csv"],
    ["shard", "data", "--out", "shards", "--problems", IMAGE],
    ["export", "m.onnx", "--out", "m.onnx"],
    ["export", "model", "--on", "data", "--out", "data/old.onnx"],
    ["export", "m.onnx.proof.json", "--out", "m.onnx"],
    ["card", "hub", "--to", "hub-folder", "--out", "hub"],
    ["train", "data", "--out", "begun"],
    ["compare", "run", "hub", "--out", "run/predictions.csv"],
    ["check", "checks/check.csv", "--out", "checks"],
    ["check", "data", "--ignore", "checks/check.csv", "--out", "checks"],
    ["explain", "train.py", "--trace", "train.py"],
    ["explain", "train.py", "--write", "train.py"],
    ["explain", "train.py", "--trace", "helper.py"],
    ["explain", "train.py", "--trace", "my.toml", "--", "--config", "my.toml"],
    ["explain", "train.py", "--trace", "my.toml", "--", "--config=my.toml"],
    ["explain", "data", "--trace", IMAGE],
    ["explain", "data", "--save-plot", IMAGE],
    ["explain", "data", "--config", "my.toml", "--trace", "my.toml"],
]
WRITTEN = ("--csv", "--jsonl", "--parquet", "--save-grid", "--problems", "--out", "--trace",
           "--write", "--save-plot")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder, which is the current one, with all that the commands read."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a.png", *(f"data/{kind}/{n}.png" for kind in ("cats", "dogs") for n in (0, 1))):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(name)
    texts = {
        **dict.fromkeys(("model", "m.onnx", "m.onnx.proof.json", "m.npz", "m.png"), "weights"),
        **dict.fromkeys(("run/model.safetensors", "hub/model.safetensors"), "weights"),
        "begun/checkpoints/last.safetensors": "mine",
        "hub/README.md": f"---\n{CARD_MARK}\n---\n",
        "run/predictions.csv": "path,label\n",
        "data/old.npz": "mine",
        "data/old.onnx": "mine",
        "list.csv": "path,label\ndata/cats/0.png,cats\ndata/dogs/1.png,dogs\n",
        "checks/check.csv": "id,path,label\n1,../data/cats/0.png,cats\n2,../data/dogs/1.png,dogs\n",
        "checks/check.html": '<meta name="generator" content="onsight check">',
        "my.toml": "epochs = 1\n",
        "helper.py": "LEARNING_RATE = 0.1\n",
        "train.py": "import helper\n",
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    return tmp_path


def contents(folder):
    """Every file with its bytes, links included."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flag_of(words):
    return next(word for word in reversed(words) if word in WRITTEN)


def refuse(words, capsys, folder):
    """Run a command, which must end with one message and leave every file as it is."""
    before = contents(folder)
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr().err.partition("error: ")[2]
    assert stop.value.code == 2, said
    assert contents(folder) == before
    return said


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_is_read_is_not_replaced(words, here, capsys):
    said = refuse(words, capsys, here)
    place = words.index(flag_of(words)) + 1
    assert flag_of(words) in said
    assert words[place] in said


@pytest.mark.parametrize("link", [os.symlink, os.link, None], ids=["symbolic", "hard", "relative"])
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "model", "a.png", "--csv", "model"],
        ["predict", "model", "a.png", "--csv", "a.png"],
        ["eval", "model", "data", "--csv", "model"],
        ["explain", "train.py", "--trace", "train.py"],
        ["explain", "train.py", "--write", "train.py"],
        ["check", "data", "--ignore", "checks/check.csv", "--out", "checks"],
    ],
    ids=" ".join,
)
def test_nor_by_another_name(words, link, here, capsys):
    if link is None:
        other = os.path.join("data", "..", words[-1])
    elif words[0] == "check":  # the list is a link to what would be replaced
        words, other = [*words[:3], "link", *words[4:]], words[-1]
        link(here / "checks" / "check.csv", "link")
    else:
        link(here / words[-1], other := "link")
    assert flag_of(words) in refuse([*words[:-1], other], capsys, here)


@pytest.mark.parametrize("words", [["predict", "model", "data", "--csv"],
                                   ["shard", "data", "--out", "shards", "--problems"]])  # fmt: skip
def test_nor_through_links_into_or_out_of_a_folder(words, here, capsys):
    Path("to-folder").symlink_to("data")
    Path("to-image.png").symlink_to(IMAGE)
    Path("data/cats/out.png").symlink_to(here / "a.png")
    for name in ("to-folder/cats/0.png", "to-image.png", "data/cats/out.png"):
        assert words[-1] in refuse([*words, name], capsys, here)


@pytest.mark.parametrize("place", [os.mkfifo, lambda path: path.symlink_to("elsewhere")])
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "model", "a.png", "--csv", "out"],
        ["predict", "model", "a.png", "--parquet", "out"],
        ["embed", "model", "a.png", "--out", "out.npz"],
        ["eval", "model", "data", "--csv", "out"],
        ["similar", "model", "a.png", "--save-grid", "out.png"],
        ["export", "model", "--out", "out.onnx"],
        ["explain", "data", "--trace", "out"],
        ["compare", "run", "hub", "--out", "out.html"],
    ],
    ids=" ".join,
)
def test_nor_is_a_link_device_or_pipe(words, place, here, capsys):
    place(out := here / words[-1])
    assert f"{flag_of(words)} {words[-1]} is a link, device or pipe" in refuse(words, capsys, here)
    assert os.path.lexists(out)
    assert not out.is_file()


def test_a_list_on_stdin_is_not_replaced(here, capsys):
    kept = os.dup(0)
    with open("list", "w+") as listed:
        listed.write("a.png\n")
    try:
        with open("list") as listed:
            os.dup2(listed.fileno(), 0)
            said = refuse(["predict", "model", "-", "--csv", "list"], capsys, here)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert "--csv" in said


@pytest.mark.parametrize("inputs", ["data/*/*.png", "list.csv"])
def test_an_image_found_late_is_not_replaced(inputs, here, capsys, monkeypatch):
    """A grid that an earlier command drew is among the images of this one."""
    from inference.stub_runner import StubRunner

    monkeypatch.setattr(predict, "load", lambda model, **options: Predictor(StubRunner()))
    software = PngInfo()
    software.add_text("Software", "Onsight")
    Image.new("L", (8, 8)).save("data/dogs/1.png", pnginfo=software)
    words = ["predict", "model", inputs, "--save-grid"]
    said = refuse([*words, "data/dogs/1.png"], capsys, here)
    assert "--save-grid would replace the input" in said
    assert "data/dogs/1.png" in said


def test_images_that_a_list_names_are_not_replaced(here, capsys, trained, shared_bars):
    shutil.copytree(trained.path, here / "runs")
    shutil.copytree(shared_bars, here / "bars")
    images = sorted(here.glob("bars/*/*.png"))
    rows = [f"{path.relative_to(here)},{path.parent.name}" for path in images]
    Path("list.csv").write_text("\n".join(["path,label", *rows, ""]))
    image = str(images[0].relative_to(here))
    for words in (
        ["eval", "runs", "list.csv", "--csv", image],
        ["similar", "runs", "a.png", "--among", "list.csv", "--save-grid", image],
        ["shard", "list.csv", "--out", "shards", "--problems", image],
        ["explain", "list.csv", "--trace", image],
        ["explain", "list.csv", "--save-plot", image],
        ["explain", "runs", "--trace", "runs/plan.json"],
        ["card", "runs", "--out", "runs/results.json"],
    ):
        said = refuse(words, capsys, here)
        assert flag_of(words) in said
        assert words[-1] in said


def test_heat_maps_do_not_become_inputs(here, capsys):
    pytest.importorskip("captum")
    said = refuse(["predict", "model", "data", "--heatmap", "data/maps"], capsys, here)
    assert "data/maps would be inside the data; choose another folder with --heatmap" in said


def test_an_exported_file_is_replaced_only_if_its_proof_is_beside_it(here, capsys):
    pytest.importorskip("onnx")
    Path("model.onnx").write_text("mine")
    foreign = "exists, and named.onnx.proof.json does not show that an export wrote it"
    assert foreign.replace("named", "model") in refuse(["export", "model"], capsys, here)
    Path("model.onnx").rename("named.onnx")
    words = ["export", "model", "--out", "named.onnx"]
    assert f"named.onnx {foreign}" in refuse(words, capsys, here)
    Path("named.onnx.proof.json").write_text('{"file": "named.onnx"}')  # as an export says
    said = refuse(words, capsys, here)
    assert "model" in said
    assert "an export wrote it" not in said
    Path("named.onnx").unlink()
    Path("named.onnx.proof.json").write_text('["mine"]')
    assert f"named.onnx.proof.json {foreign}" in refuse(words, capsys, here)


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "model", "a.png", "--csv", "data/cats/0.png"],  # a shell's data/cats/*.png
        ["predict", "model", "a.png", "--csv", "list.csv"],
        ["predict", "model", "a.png", "--csv", "run/predictions.csv"],
        ["predict", "model", "a.png", "--jsonl", "run/model.safetensors"],
        ["predict", "model", "a.png", "--parquet", "train.py"],
        ["predict", "model", "a.png", "--parquet", "table.parquet"],
        ["embed", "model", "a.png", "--out", "table.parquet"],
        ["embed", "model", "a.png", "--out", "arrays.npz"],
        ["embed", "model", "a.png", "--out", "text.npz"],
        ["predict", "model", "a.png", "--save-grid", "data/cats/0.png"],
        ["eval", "model", "data", "--csv", "list.csv"],
        ["similar", "model", "a.png", "--save-grid", "data/cats/0.png"],
        ["explain", "data", "--save-plot", "a.png"],
        ["explain", "train.py", "--html", "checks/check.html"],
        ["explain", "data", "--html", "checks/check.html"],
        ["explain", "train.py", "--trace", "trace.json"],
        ["explain", "data", "--trace", "trace.json"],
    ],
)
def test_a_file_of_another_origin_is_left_alone(words, here, capsys):
    if words[-1] == "table.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"path": ["a.png"], "label": ["cat"]}), "table.parquet"
        )
    np.savez("arrays.npz", paths=["a.png"], features=[[1.0]])
    Path("text.npz").write_text("mine")
    Path("trace.json").write_text('{"traceEvents":[]}')
    said = refuse(words, capsys, here)
    assert words[-2] in said
    assert words[-1] in said
    assert "another file" in said


def test_an_earlier_file_of_predictions_is_replaced(here, capsys, monkeypatch):
    from inference.stub_runner import StubRunner

    monkeypatch.setattr(predict, "load", lambda model, **options: Predictor(StubRunner()))
    Path("run/rows.csv").write_text("path,predicted,probability,problem\nformer,cat,1.0,\n")
    with pytest.raises(SystemExit) as stop:
        main(["predict", "run", "a.png", "--csv", "run/rows.csv"])
    assert stop.value.code == 0, capsys.readouterr().err
    assert Path("run/rows.csv").read_text().count("a.png") == 1
