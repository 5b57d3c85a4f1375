"""Export to ONNX, for `inference/onnx_runner` and other runtimes."""

import json
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from onsight.export.format import Classify, Format
from onsight.export.whole import exporting
from onsight.files import BLANK_DIGEST, digest_around, write_atomically
from onsight.inference.onnx_runner import INPUT, METADATA_KEY, OUTPUT, SCORES, load_onnx


def write_onnx(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
    """Write the graph with its facts. Raises ModelError if ONNX lacks an operator; DiskError."""
    outputs = [OUTPUT, SCORES][: len(program.graph_signature.user_outputs)]
    with exporting("ONNX"):
        exported = torch.onnx.export(
            program, input_names=[INPUT], output_names=outputs, verbose=False
        )
    assert exported is not None
    proto = exported.model_proto
    _remove_traces(proto.graph)
    seal_onnx(proto, facts, path)


def seal_onnx(proto: Any, facts: dict[str, Any], path: Path) -> None:
    """Write an onnx.ModelProto with facts and a checksum of all its bytes. Raises DiskError."""
    del proto.metadata_props[:]
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, json.dumps({**facts, "sha256": BLANK_DIGEST})
    data = bytearray(proto.SerializeToString())
    start = data.rindex(f'"sha256": "{BLANK_DIGEST}"'.encode()) + len('"sha256": "')
    data[start : start + len(BLANK_DIGEST)] = digest_around(data, start).encode()
    write_atomically(path, data)


def _remove_traces(graph: Any) -> None:
    """Remove the exporter's metadata: stack traces with paths of this machine."""
    fields = (graph.node, graph.value_info, graph.input, graph.output, graph.initializer)
    for item in (item for field in fields for item in field):
        del item.metadata_props[:]


def _run_onnx(path: Path) -> Classify:
    runner = load_onnx(path)
    return lambda images: runner.run(images).probabilities


FORMAT = Format(
    ".onnx",
    ("onnx", "onnxscript", "onnxruntime"),
    "export",
    write_onnx,
    _run_onnx,
    detects_out_of_distribution=True,
)
