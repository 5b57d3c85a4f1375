"""An exported file predicts without torch, and any file that is not sound is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

import onsight
from onsight.errors import ConfigError, DeviceError, ModelError
from onsight.export import to_onnx
from onsight.export.to_onnx import seal_onnx

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        heavy = {"torch", "timm", "torchvision", "matplotlib", "tensorboard", "onnx", "onnxscript"}
        if name.partition(".")[0] in heavy:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from onsight.cli import main
main(sys.argv[1:])
"""


def test_predicting_with_it_loads_no_torch(trained, shared_bars, onnx_file):
    folder = shared_bars / "across"
    words = ["predict", str(onnx_file), str(folder), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["predictions"]
    expected = onsight.load(trained.path).predict([row["path"] for row in rows])
    assert len(rows) == 60
    assert [row["predicted"] for row in rows] == expected


CHECKED = """
import os, sys
from onsight.cli import main
try:
    main(sys.argv[1:])
finally:
    assert "onnxruntime" in sys.modules
    print(os.environ.get("ORT_DISABLE_TELEMETRY"))
"""


@pytest.mark.parametrize("chosen", [None, "0"])
def test_onnxruntime_reports_nothing_unless_the_user_lets_it(
    shared_bars, onnx_file, tmp_path, chosen
):
    """Before, it left a device id and queued events below HOME."""
    ours = {key: text for key, text in os.environ.items() if key not in ("CI", "XDG_CACHE_HOME")}
    ours.pop("ORT_DISABLE_TELEMETRY", None)
    ours |= {"HOME": str(tmp_path)} | ({"ORT_DISABLE_TELEMETRY": chosen} if chosen else {})
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, "predict", str(onnx_file), str(shared_bars / "across")],
        capture_output=True,
        text=True,
        check=False,
        env=ours | {"CI": "true"} if chosen else ours,  # in CI, it reports nothing in any case
    )
    assert done.stdout.splitlines()[-1] == (chosen or "1"), done.stderr
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []
    assert "onnxruntime" in to_onnx.FORMAT.packages  # so that `export` switches it off too


def resealed(source, path, **changes):
    """A copy of an exported file with other facts, and a checksum that is right."""
    model = onnx.load(source)
    facts = json.loads(model.metadata_props[0].value)
    seal_onnx(model, {**facts, **changes}, path)
    return path


@pytest.mark.parametrize("place", [0, 100, 5_000, -300, -3])
def test_a_changed_byte_is_damage(onnx_file, tmp_path, place):
    data = bytearray(onnx_file.read_bytes())
    data[place] ^= 1
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"m\.onnx .*damaged"):
        onsight.load(tmp_path / "m.onnx")


def test_other_files_are_refused_with_one_sentence(onnx_file, tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(ModelError, match=r"m\.onnx does not exist"):
        onsight.load(path)
    for content in (b"", b"no model", onnx_file.read_bytes()[:-1000]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"was not exported by Onsight, or it is damaged"):
            onsight.load(path)
    foreign = onnx.load(onnx_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, path)
    with pytest.raises(ModelError, match="onsight export MODEL"):
        onsight.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ModelError, match="is not a file"):
        onsight.load(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "has version 2 of the format.*pip install -U onsight"),
        ({"format": "other"}, "its format is 'other'"),
        ({"classes": ["one"]}, "do not match its metadata"),
        ({"classes": ["one", "one"]}, "two of its classes have the same name"),
        ({"image": {}}, "incomplete or damaged"),
        ({"temperature": 0}, "temperature"),
        ({"model": None}, "its network has no name"),
    ],
)
def test_facts_that_this_version_cannot_use_are_refused(onnx_file, tmp_path, changes, said):
    with pytest.raises(ModelError, match=said):
        onsight.load(resealed(onnx_file, tmp_path / "m.onnx", **changes))


def test_what_it_cannot_do_is_said(onnx_file, monkeypatch):
    predictor = onsight.load(onnx_file)
    with pytest.raises(
        ModelError, match="cannot be used for computing features: it can only predict"
    ):
        predictor.embed(np.zeros((12, 12), np.uint8))
    with pytest.raises(ModelError, match="cannot be used for reading its .* Use the run folder"):
        _ = predictor.file
    with pytest.raises(DeviceError, match="runs on the CPU, not on 'cuda'"):
        onsight.load(onnx_file, device="cuda")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[run\]'"):
        onsight.load(onnx_file)
