"""Export to a folder with a web page that classifies in the browser, offline.

The page needs no server: everything it loads is a script beside it, including onnxruntime-web.
"""

import base64
import json
from pathlib import Path
from typing import Any

from onsight.errors import ConfigError, OutputError
from onsight.export.export import Exported, default_path, export
from onsight.export.readme import write_readme
from onsight.files import check_output, disk_errors, new_folder, write_atomically
from onsight.inference.onnx_runner import load_onnx

_PAGE = Path(__file__).parent / "web"
_PAGE_FILES = ("index.html", "style.css", "pixels.js", "classifier.js", "app.js")
_PACKAGE = "onnxruntime-web"
_SCRIPT, _LOADER, _WASM = (
    "ort.wasm.min.js",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
_INSTALL = (
    f"--to web needs {_PACKAGE}, which comes from npm: run `npm install {_PACKAGE}` in this "
    "folder, then the same command again"
)


def export_web(model: Path, out: Path | None = None, **options: Any) -> tuple[Exported, Path]:
    """Export a model to ONNX, prove it, and write the folder with the page.

    Returns the exported file and the folder, by default RUN/export/web. Options and errors are the
    same as for `export`.
    """
    folder = out or default_path(model, "web", "")
    runtime = find_runtime(Path.cwd())
    if folder.exists():
        raise OutputError(f"{folder} exists already; choose another folder with --out")
    check_output("--out", folder)
    exported = export(model, **options)
    write_web_folder(exported.path, folder, runtime)
    return exported, folder


def find_runtime(start: Path) -> Path:
    """Return the folder of onnxruntime-web in the nearest node_modules. Raises ConfigError."""
    start = start.absolute()
    for parent in (start, *start.parents):
        folder = parent / "node_modules" / _PACKAGE / "dist"
        if all((folder / name).is_file() for name in (_SCRIPT, _LOADER, _WASM)):
            return folder
    raise ConfigError(_INSTALL)


def write_web_folder(network: Path, folder: Path, runtime: Path) -> None:
    """Write the page, the exported network and the runtime into a new folder.

    Raises ModelError, DiskError.
    """
    facts = load_onnx(network).metadata
    with disk_errors(folder), new_folder(folder) as temporary:
        for name in _PAGE_FILES:
            write_atomically(temporary / name, (_PAGE / name).read_bytes())
        write_readme(temporary / "README.md", network.name, "web", facts)
        write_atomically(temporary / "ort.js", (runtime / _SCRIPT).read_bytes())
        files = {"loader": _base64(runtime / _LOADER), "wasm": _base64(runtime / _WASM)}
        write_atomically(temporary / "runtime.js", _assignment("onnxruntimeFiles", files))
        model = {"facts": facts, "network": _base64(network)}
        write_atomically(temporary / "model.js", _assignment("onsightModel", model))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _assignment(name: str, value: object) -> bytes:
    """Return a script that sets a global variable: unlike data files, scripts load from a disk."""
    return f"window.{name} = {json.dumps(value)};\n".encode()
