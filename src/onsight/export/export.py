"""Exporting a model: write the file, prove it on held-out images, and only then name it."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from onsight.data.cache import find_cache_folder
from onsight.data.loader import Images, Loader
from onsight.data.pillow_pixels import Pixels
from onsight.errors import ConfigError, OutputError
from onsight.export.facts import facts_of
from onsight.export.format import Classify, find_format
from onsight.export.images import calibration_images, proof_images
from onsight.export.proof import Proof, check_difference, check_loss, compare
from onsight.export.speed import compare_speed
from onsight.export.whole import as_program
from onsight.files import check_output, disk_errors, put_in_place, write_json
from onsight.hardware.environment import package_versions
from onsight.inference.held_out import HeldOutImages
from onsight.inference.predictor import Predictor, list_model_files
from onsight.inference.torch_runner import TorchRunner
from onsight.models.file import ModelFile, build_model, load_model_file
from onsight.models.user import make_user_model
from onsight.report.console import Reporter, SilentReporter
from onsight.report.runfiles import read_json
from onsight_explain.cores import usable_cores


@dataclass(frozen=True)
class Exported:
    """An exported file, its proof, and the facts written beside it, in `proof_place`."""

    path: Path
    proof: Proof
    facts: dict[str, Any]


def export(
    model: str | Path,
    *,
    to: str = "onnx",
    out: Path | None = None,
    on: str | None = None,
    int8: bool = False,
    max_loss: float = 1.0,
    module: str | None = None,
    data_format: str = "auto",
    cache_folder: str = "",
    reporter: Reporter | None = None,
) -> Exported:
    """Export a run folder or model file; nothing has the final name unless the proof holds.

    on: images for the proof instead of those that the run held out; max_loss: percentage points
    of accuracy that int8 may cost, at the upper end of the paired 95% interval. Raises NotProven
    if the file does something else than the model; UserError, DiskError.
    """
    reporter = reporter or SilentReporter()
    form = find_format(to)
    if int8 and to != "onnx":
        raise ConfigError(f"--int8 is for --to onnx, not for {to}")
    if not 0 <= max_loss < math.inf:
        raise ConfigError(f"--max-loss is in percentage points, 0 or more, not {max_loss}")
    target = out or default_place(Path(model), "int8" if int8 else "model", form.suffix)
    if target.suffix != form.suffix:
        raise ConfigError(f"a file in the format {to} must end in {form.suffix}: {target}")
    _check_places(target, Path(model), on, is_named=out is not None)
    file = _in_fp32(load_model_file(model), reporter)
    predictor = Predictor(TorchRunner(file, torch.device("cpu"), _net(file, module)))
    kept = find_cache_folder(cache_folder)
    held_out = proof_images(predictor, on, data_format, kept, reporter)
    with _beside(target) as workplace:
        written = workplace / target.name
        detects_out_of_distribution = (
            form.detects_out_of_distribution and not int8
        )  # in 8 bits the score would be another
        with disk_errors(target):
            form.write(
                _program(file, module, detects_out_of_distribution),
                facts_of(file, detects_out_of_distribution),
                written,
            )
        if int8:
            calibration = calibration_images(predictor, held_out, kept, reporter)
            _quantize(written, calibration, reporter)
        proof = _prove(predictor, form.run(written), held_out, reporter)
        if int8:
            check_loss(proof, max_loss)
        else:
            check_difference(proof, to)
        facts = {
            "format": to,
            "precision": "int8" if int8 else "fp32",
            **_facts_of_files(written, list_model_files(Path(model))[0]),
            "model": file.model,
            "classes": list(file.classes),
            "image": file.preprocessing.facts(),
            "data": on or file.provenance["data"],
            "threads": usable_cores(),
            "versions": package_versions() | {name: version(name) for name in form.packages},
            **proof.facts(),
        }
        write_json(written.with_name(proof_place(target).name), facts)
        _move(workplace, target)
    return Exported(target, proof, facts)


def default_place(model: Path, stem: str, suffix: str) -> Path:
    """RUN/export/model.onnx for a run folder, or a file beside the model file."""
    folder = model / "export" if model.is_dir() else model.parent
    return folder / f"{stem}{suffix}"


def proof_place(target: Path) -> Path:
    """Where the proof of an exported file is: model.onnx.proof.json beside model.onnx."""
    return target.with_name(f"{target.name}.proof.json")


def _check_places(target: Path, model: Path, on: str | None, is_named: bool) -> None:
    """Find what cannot be written, or must not be, before the work.

    is_named: whether the user named the target. What they did not name, such as the proof beside
    it, is replaced only if an export has written it. Raises OutputError, DiskError.
    """
    proof_path = proof_place(target)
    for place in (target, proof_path):
        check_output("--out", place, model=list_model_files(model), proof_on=on)
    proof = read_json(proof_path)
    if isinstance(proof, dict) and proof.get("file") == target.name:
        return
    for place in (proof_path,) if is_named else (target, proof_path):
        if place.exists():
            raise OutputError(f"{place} is not of an earlier export; choose another --out")


def _in_fp32(file: ModelFile, reporter: Reporter) -> ModelFile:
    precision = file.preprocessing.precision
    if precision == "fp32":
        return file
    reporter.warn(f"the model computes in {precision}; the export and its proof are in fp32")
    exact = file.preprocessing.model_copy(update={"precision": "fp32"})
    return replace(file, preprocessing=exact)


def _net(file: ModelFile, module: str | None) -> torch.nn.Module | None:
    shape = file.preprocessing.input_shape
    return make_user_model(module, shape, len(file.classes)) if module else None


def _program(
    file: ModelFile, module: str | None, detects_out_of_distribution: bool
) -> ExportedProgram:
    """The graph of the whole classifier. Raises ModelError."""
    bank = (
        file.out_of_distribution.bank
        if file.out_of_distribution and detects_out_of_distribution
        else None
    )
    net = build_model(file, _net(file, module))
    return as_program(net, file.preprocessing, file.temperature, bank)


def _facts_of_files(written: Path, model: Path) -> dict[str, Any]:
    """The name, size and digest of what was written, and the size of the model file."""
    return {
        "file": written.name,
        "bytes": written.stat().st_size,
        "sha256": hashlib.sha256(written.read_bytes()).hexdigest(),
        "model_bytes": model.stat().st_size,
    }


def _quantize(written: Path, images: Pixels, reporter: Reporter) -> None:
    """Replace a file in fp32 by one in 8 bits."""
    from onsight.export.int8 import write_int8

    reporter.say(f"int8: scales measured on {len(images):,} training images")
    write_int8(written, images, written)


def _prove(
    predictor: Predictor, exported: Classify, held_out: HeldOutImages, reporter: Reporter
) -> Proof:
    def in_torch(images: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
        return predictor.runner.run(images).probabilities

    images, cpu = Images.of(held_out.pack), torch.device("cpu")
    batch = min(predictor.runner.batch_size, len(held_out.ids))
    loader = Loader(images, held_out.ids, batch, cpu)
    with reporter.bar("prove", len(held_out.ids)) as bar:
        proof = compare(in_torch, exported, loader.in_order(), bar.advance)
    timed = images.gather(held_out.ids[:batch]).images.numpy()
    sizes = sorted({1, batch})
    return replace(
        proof, speeds=tuple(compare_speed(in_torch, exported, timed[:size]) for size in sizes)
    )


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A hidden folder on the same disk, gone in the end."""
    with disk_errors(target):
        folder = TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    with folder as name:
        yield Path(name)


def _move(workplace: Path, target: Path) -> None:
    """Give the files their final names, the one that was asked for last."""
    files = sorted(workplace.iterdir(), key=lambda one: one.name == target.name)
    with disk_errors(target):
        for one in files:
            with open(one, "rb") as file:
                put_in_place(file, one, target.with_name(one.name))
