"""The folder for the browser holds all that its page loads, whole or not at all."""

import base64
import json
import re
import shutil
import subprocess

import pytest

from onsight.errors import ConfigError, DataError, OutputError
from onsight.export import to_web
from onsight.export.to_web import export_web, find_runtime, write_web_folder
from onsight.inference.onnx_runner import load_onnx


@pytest.fixture
def runtime(tmp_path):
    """Stands for what npm installs."""
    place = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    place.mkdir(parents=True)
    for name in (to_web._SCRIPT, to_web._LOADER, to_web._WASM):
        (place / name).write_text(f"// {name}")
    return place


def test_the_page_finds_everything_beside_it(onnx_file, runtime, tmp_path):
    folder = tmp_path / "web"
    write_web_folder(onnx_file, folder, runtime)
    page = (folder / "index.html").read_text()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {*loaded, "index.html", "README.md"} == {path.name for path in folder.iterdir()}
    assert "Open `index.html` in a browser" in (folder / "README.md").read_text()
    assert not [path for path in folder.iterdir() if re.search(r"https?://", path.read_text())]
    model = json.loads((folder / "model.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert base64.b64decode(model["network"]) == onnx_file.read_bytes()
    assert model["facts"]["classes"] == list(load_onnx(onnx_file).classes)
    files = json.loads((folder / "runtime.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert base64.b64decode(files["wasm"]).decode() == f"// {to_web._WASM}"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(("score", "is_unlike"), [(0.2, False), (0.4, True), (None, False)])
def test_the_page_warns_of_images_unlike_those_of_training(score, is_unlike):
    image = {"height": 1, "width": 1, "channels": 1}
    facts = {"image": image, "classes": ["a", "b"]}
    outputs = {"probabilities": {"data": [0.25, 0.75]}}
    if score is not None:
        facts["out_of_distribution"] = {"threshold": 0.3}
        outputs["scores"] = {"data": [score]}
    model = json.dumps({"facts": facts, "network": ""})
    script = f"""
        const onnxruntimeFiles = {{ wasm: "", loader: "" }};
        globalThis.window = {{ onsightModel: {model}, onnxruntimeFiles }};
        const stub = {{ run: async () => ({json.dumps(outputs)}) }};
        globalThis.ort = {{
            env: {{ wasm: {{}} }},
            Tensor: class {{}},
            InferenceSession: {{ create: async () => stub }},
        }};
        globalThis.pixels = {{ decode: async () => 0, fit: () => ({{ bytes: 0 }}) }};
        {to_web._PAGE.joinpath("classifier.js").read_text()}
        classifier.classify(null).then((found) => console.log(JSON.stringify(found)));
    """
    ran = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["isUnlike"] is is_unlike
    assert found["ranked"][0] == {"name": "b", "probability": 0.75}


def test_the_runtime_is_found_upwards_or_asked_for(runtime, tmp_path, monkeypatch):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_runtime(below) == runtime
    (runtime / to_web._WASM).unlink()
    monkeypatch.chdir(below)
    with pytest.raises(ConfigError, match="npm install onnxruntime-web"):
        export_web(tmp_path / "run")


def test_a_folder_that_exists_is_left_alone(runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        export_web(tmp_path / "run", tmp_path / "mine")


def test_an_export_that_fails_leaves_no_folder_that_is_in_the_way(runtime, tmp_path, monkeypatch):
    def refuse(model, **options):
        raise DataError("there are no images to prove the export on")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(to_web, "export", refuse)
    for _ in range(2):
        with pytest.raises(DataError, match="to prove"):
            export_web(tmp_path / "run", tmp_path / "web")
    assert not (tmp_path / "web").exists()


def test_a_failure_leaves_nothing(onnx_file, runtime, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(to_web, "write_atomically", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Exception, match="no space left"):
        write_web_folder(onnx_file, tmp_path / "web", runtime)
    assert sorted(tmp_path.iterdir()) == before
