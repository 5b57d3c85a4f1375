"""An exported model as a folder with one page, which classifies in the browser, offline.

The page needs no server: everything it loads lies beside it as scripts, onnxruntime-web too.
"""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onsight.errors import ConfigError, OutputError
from onsight.export.export import Exported, default_place, export
from onsight.files import check_output, disk_errors, sync_folder
from onsight.inference.onnx_runner import load_onnx

_PAGE = Path(__file__).parent / "web"
_FILES = ("index.html", "style.css", "pixels.js", "classifier.js", "app.js")
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
    """Export a model to ONNX, prove it, and write the folder with the page, which is returned too.

    out: the folder, by default RUN/export/web; options: as for `export`. Raises what it raises.
    """
    folder = out or default_place(model, "web", "")
    _check(folder)
    exported = export(model, **options)
    write_web_folder(exported.path, folder)
    return exported, folder


def _check(folder: Path) -> None:
    """Find what cannot work before the export. Raises ConfigError, OutputError, DiskError."""
    find_runtime(Path.cwd())
    if folder.exists():
        raise OutputError(f"{folder} exists already; choose another folder with --out")
    check_output("--out", folder / "index.html")


def write_web_folder(network: Path, folder: Path, start: Path | None = None) -> None:
    """Write the page, the exported network and the runtime into a new folder.

    start: where the search for node_modules begins, upwards; None: the current folder. Raises
    ConfigError if onnxruntime-web is not installed there; ModelError, DiskError.
    """
    runtime = find_runtime(start or Path.cwd())
    known = load_onnx(network).metadata
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _fill(made, runtime, known, network)
            made.chmod(0o755)
            made.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def find_runtime(start: Path) -> Path:
    """The files of onnxruntime-web in the nearest node_modules. Raises ConfigError."""
    for place in _upwards(start.absolute()):
        found = place / "node_modules" / _PACKAGE / "dist"
        if all((found / name).is_file() for name in (_SCRIPT, _LOADER, _WASM)):
            return found
    raise ConfigError(_INSTALL)


def _upwards(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents


def _fill(folder: Path, runtime: Path, known: object, network: Path) -> None:
    for name in _FILES:
        _write(folder / name, (_PAGE / name).read_bytes())
    _write(folder / "ort.js", (runtime / _SCRIPT).read_bytes())
    loaded = {"loader": _text(runtime / _LOADER), "wasm": _text(runtime / _WASM)}
    _write(folder / "runtime.js", _assigned("onnxruntimeFiles", loaded))
    model = {"facts": known, "network": _text(network)}
    _write(folder / "model.js", _assigned("onsightModel", model))


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _assigned(name: str, value: object) -> bytes:
    """A script that sets a variable of the page: unlike other files, it loads from a disk too."""
    return f"window.{name} = {json.dumps(value)};\n".encode()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
