"""Read the outputs of a scenario as facts by which two trees can be compared.

Times, paths and versions are left out, by the lists below; nothing else is.
"""

import csv
import hashlib
import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

# Values of these keys in JSON and TOML tell times, memory, versions or the machine.
IGNORED_KEYS = {
    "seconds",
    "images_per_second",
    "process_seconds",
    "decode_seconds",
    "train_seconds",
    "evaluate_seconds",
    "data_wait_share",
    "wait_share",
    "started",
    "finished",
    "created",
    "date",
    "environment",
    "onsight_version",
    "versions",
    "peak_memory_bytes",
    "milliseconds",
    "phases",
    "speeds",
    # Of explain, besides its saved timings:
    "ceilings",
    "explained_in_seconds",
    "rates",
    # Drawn only if there is time for it:
    "lookalikes",
    "near",
    "near_file",
    "heat",
    "heat_file",
}
# Parts of text that tell the same, replaced in this order.
IGNORED_TEXT = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "<date>"),
    (re.compile(r"\b[\d,]+(\.\d+)?( ?(images|pictures))?( ?/ ?s\b| (a|per) second\b)"), "<rate>"),
    (re.compile(r"\b\d+ min(utes)?( \d+ s)?\b"), "<seconds>"),
    (re.compile(r"\b[\d,]+(\.\d+)? ?(s|ms|us|µs|seconds|milliseconds)\b"), "<seconds>"),
    (re.compile(r"\b\d+(\.\d+)? ?(MiB|GiB|KiB)\b"), "<bytes>"),
    (re.compile(r"[\d.]+% (of the time )?(waiting|waited)"), "<share> waiting"),
    (re.compile(r"waited for data [\d.]+% of the time"), "waited for data <share>"),
    (re.compile(r"[\d.]+ Wh\b"), "<energy>"),
    (re.compile(r"<rate>, in torch .*"), "<rate>"),
    (re.compile(r"\b0\.1\.0(\+g[0-9a-f]+)?\b"), "<version>"),
    (re.compile(r"data:image/[^\"')]+"), "<image>"),
    (re.compile(r"process \d+"), "process <number>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:<port>"),
)
# Lines of progress, which are printed every few seconds; metrics.jsonl has the epochs' figures.
IGNORED_LINE = re.compile(
    r"(features|decoding|decoded|heat maps): [\d,]+/[\d,]+|epoch \d+/\d+: |resum|"
    r"note: this machine is busy with other work"
)
# Sections of the report that tell times, or show what is drawn if there is time.
IGNORED_SECTIONS = ("time", "mistakes")
# Files that hold nothing but times and the machine, or what other files tell.
IGNORED_FILES = (
    *("environment.json", "tfevents", ".cache/", "checkpoints/", ".log"),
    *("gallery/near-", "gallery/heat-"),
)
# Cells of a table of the report: an epoch's seconds, images/s and share of waiting.
IGNORED_CELLS = re.compile(r"^<seconds>\n[\d,]+\n[\d.]+%$", re.MULTILINE)
IGNORED_IN_FILE = {"model.pt2.proof.json": ("bytes", "sha256")}  # a .pt2 file names its sources


def read_outputs(folder: Path, names: dict[str, str]) -> dict[str, object]:
    """Read every file below a folder as facts. names: placeholders for paths of this machine."""
    facts: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and not any(ignored in relative for ignored in IGNORED_FILES):
            facts[relative] = _read_file(path, names)
    return facts


def _read_file(path: Path, names: dict[str, str]) -> object:
    if path.suffix == ".safetensors":
        return _read_tensors(path, names)
    if path.suffix == ".npz":
        return _read_arrays(path)
    if path.suffix in {".onnx", ".pt2", ".png", ".jpg", ".zip", ".tar"}:
        return path.stat().st_size > 0  # the exports' outputs are compared, not their bytes
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".json":
        facts = json.loads(text)
        for key in IGNORED_IN_FILE.get(path.name, ()):
            del facts[key]
        return normalize(facts, names)
    if path.suffix == ".jsonl":
        return [normalize(json.loads(line), names) for line in text.splitlines()]
    if path.suffix == ".toml":
        return normalize(tomllib.loads(text), names)
    if path.suffix == ".csv":
        return normalize(list(csv.reader(text.splitlines())), names)
    if path.suffix == ".html":
        for section in IGNORED_SECTIONS:
            text = re.sub(rf'<section id="{section}">.*?</section>', "", text, flags=re.DOTALL)
        text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "\n", text))
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not IGNORED_LINE.match(line)]
    lines = [_normalize_text(line, names) for line in lines]
    if path.suffix == ".html":
        lines = IGNORED_CELLS.sub("<seconds>", "\n".join(lines)).splitlines()
    if path.suffix == ".stdout" and lines and lines[-1].startswith("{"):
        last = next(line for line in reversed(text.splitlines()) if line.strip())
        return [*lines[:-1], normalize(json.loads(last), names)]
    return lines


def _read_tensors(path: Path, names: dict[str, str]) -> dict[str, object]:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    facts: dict[str, object] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        digest = hashlib.sha256(content[8 + size + begin : 8 + size + end]).hexdigest()
        facts[name] = f"{entry['dtype']} {entry['shape']} {digest}"
    return facts


def _read_arrays(path: Path) -> dict[str, object]:
    with np.load(path) as arrays:  # refuses pickles
        return {
            name: f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
            for name, array in arrays.items()
        }


def normalize(value: Any, names: dict[str, str]) -> object:
    """Return a value of JSON or TOML without what is ignored."""
    if isinstance(value, dict):
        return {
            _normalize_text(key, names): normalize(entry, names)
            for key, entry in value.items()
            if key not in IGNORED_KEYS
        }
    if isinstance(value, list):
        return [normalize(entry, names) for entry in value]
    return _normalize_text(value, names) if isinstance(value, str) else value


def _normalize_text(text: str, names: dict[str, str]) -> str:
    for path, name in names.items():
        text = text.replace(path, name)
    for pattern, name in IGNORED_TEXT:
        text = pattern.sub(name, text)
    return text
