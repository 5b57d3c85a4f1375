"""Export to torch's format, a .pt2 file that runs without Onsight.

Its weights and graph are plain bytes and JSON, but its example input is a pickle, and
torch.export.load may unpickle: load only files that you trust.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from onsight.data.pixels import Pixels
from onsight.export.format import Classify, Format
from onsight.export.whole import exporting


def write_torch_export(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
    """Write the graph with its facts. Raises ModelError."""
    with exporting("torch.export.save"):
        torch.export.save(program, path, extra_files={"onsight.json": json.dumps(facts)})


def _run_torch_export(path: Path) -> Classify:
    forward = torch.export.load(path).module()

    @torch.inference_mode()
    def classify(images: Pixels) -> Any:
        return forward(torch.from_numpy(images)).numpy()

    return classify


FORMAT = Format(".pt2", (), "", write_torch_export, _run_torch_export)
