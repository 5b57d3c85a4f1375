"""The classifier for ExecuTorch, PyTorch's runtime for phones: a .pte file, a picture at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from onsight.data.pillow_pixels import Pixels
from onsight.export.format import Classify, Format
from onsight.export.whole import exporting


def write_executorch(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
    """Write the graph, its convolutions for XNNPACK; facts have no place. Raises ModelError."""
    with exporting("ExecuTorch"):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        path.write_bytes(lowered.to_executorch().buffer)


def _run_executorch(path: Path) -> Classify:
    with exporting("ExecuTorch"):  # which warns that it is experimental
        from executorch.runtime import Runtime

        forward = Runtime.get().load_program(path).load_method("forward")

    def classify(pictures: Pixels) -> Any:
        rows = [forward.execute([torch.from_numpy(one)])[0].numpy() for one in pictures[:, None]]
        return np.concatenate(rows)

    return classify


FORMAT = Format(".pte", ("executorch",), "executorch", write_executorch, _run_executorch, batch=1)
