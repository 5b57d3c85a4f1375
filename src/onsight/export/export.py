"""Export a model: write the file, prove it on held-out images, and only then give it its name."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from onsight.data.cache import find_cache_folder
from onsight.data.loader import Images, Loader
from onsight.errors import ConfigError, DataError, OutputError
from onsight.export.format import Classify, find_format
from onsight.export.proof import (
    ExportProof,
    OwnPrecision,
    check_difference,
    check_loss,
    compare_outputs,
    compare_speed,
    open_proof_images,
    read_calibration_images,
)
from onsight.export.readme import readme_path, write_readme
from onsight.export.whole import as_program
from onsight.files import check_output, disk_errors, move_into_place, write_json
from onsight.hardware.devices import package_versions
from onsight.inference.held_out import HeldOutImages
from onsight.inference.onnx_runner import FORMAT, VERSION
from onsight.inference.predictor import Predictor, list_model_files
from onsight.inference.runner import Runner
from onsight.inference.torch_runner import TorchRunner
from onsight.models.build import build_classifier
from onsight.models.file import BlendFile, ModelFile, load_model_file
from onsight.report.console import Reporter, SilentReporter
from onsight.report.run_files import read_json
from onsight.text import data_size, joined
from onsight_explain.paired_timing import warn_if_busy
from onsight_explain.threads import usable_cores

_OMITTED_RESULTS = {"calibration", "calibration_before", "confusion", "notes"}  # long lists
_OWN_IMAGES = 128  # to compare precisions on, which takes long where bf16 is slow
_PROVENANCE = ("data", "found", "data_key", "versions")


@dataclass(frozen=True)
class Exported:
    """An exported file and its proof."""

    path: Path
    proof: ExportProof
    facts: dict[str, Any]  # contents of proof_path(path)

    def lines(self) -> Iterator[str]:
        """Yield the lines to print: the proof, sizes and files."""
        yield from self.proof.lines(self.facts["threads"])
        size, model_size = self.facts["bytes"], self.facts["model_bytes"]
        yield f"size: {data_size(size)}, the model file {data_size(model_size)}"
        yield f"proof: {proof_path(self.path)}"
        yield f"how to use it: {readme_path(self.path)}"
        yield f"exported: {self.path}"


def export(
    model: str | Path,
    *,
    to: str = "onnx",
    out: Path | None = None,
    on: str | None = None,
    int8: bool = False,
    max_loss: float = 1.0,
    module: str | None = None,
    member: str = "",
    data_format: str = "auto",
    cache_folder: str = "",
    reporter: Reporter | None = None,
) -> Exported:
    """Export a run folder or model file; no file gets its final name unless the proof holds.

    on: images for the proof instead of the run's; max_loss: percentage points
    of accuracy that int8 may cost, at the upper end of the paired 95% CI; member: the name of a
    network of a blend, to export it alone. Raises ExportMismatch
    if the file's outputs differ from the model's; UserError, DiskError.
    """
    reporter = reporter or SilentReporter()
    form = find_format(to)
    if int8 and to != "onnx":
        raise ConfigError(f"--int8 is for --to onnx, not for {to}")
    if not 0 <= max_loss < math.inf:
        raise ConfigError(f"--max-loss is in percentage points, 0 or more, not {max_loss}")
    stem = "-".join(filter(None, ("int8" if int8 else "model", member)))
    target = out or default_path(Path(model), stem, form.suffix)
    if target.suffix != form.suffix:
        raise ConfigError(f"a file in the format {to} must end in {form.suffix}: {target}")
    _check_targets(target, Path(model), on)
    cpu = torch.device("cpu")
    own_file = load_model_file(model, member)
    file = own_file.in_fp32()
    predictor = Predictor(TorchRunner(file, cpu, module))
    cache = find_cache_folder(cache_folder)
    held_out = open_proof_images(predictor, Path(model), on, data_format, cache, reporter)
    if int8 and len(held_out.ids) == 0:
        raise DataError(
            f"the model was trained on all {len(held_out.seen):,} labelled images of "
            f"{on or file.provenance['data']}, so none are left to measure what --int8 costs. Give "
            "others with --on DATA, or train with --folds 1, which holds some out"
        )
    with disk_errors(target):
        temporary = TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
    with temporary as name:
        folder = Path(name)
        path = folder / target.name
        # The out-of-distribution scores would change in 8 bits.
        can_score = form.detects_out_of_distribution and not int8
        with_scores = can_score and file.out_of_distribution is not None
        with disk_errors(target):
            # Tracing may change the networks, so it gets others than those of the proof.
            program = as_program(build_classifier(file, cpu, module), file.format, with_scores)
            form.write(program, model_facts(file, with_scores), path)
        if int8:
            from onsight.export.int8 import write_int8

            calibration = read_calibration_images(predictor, Path(model), held_out, cache, reporter)
            reporter.say(f"int8: scales measured on {len(calibration):,} training images")
            write_int8(path, calibration, path)
        proof = _prove(predictor, form.run(path), held_out, reporter)
        own = _compare_in_own_precision(own_file, module, form.run(path), held_out)
        proof = replace(proof, own=own)
        if int8:
            check_loss(proof, max_loss)
        else:
            check_difference(proof, to)
        facts = {
            "format": to,
            "precision": "int8" if int8 else "fp32",
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "model_bytes": list_model_files(Path(model))[0].stat().st_size,
            **({"member": member} if member else {}),
            **_network_facts(file),
            "data": on or file.provenance["data"],
            "threads": usable_cores(),
            "versions": package_versions() | {name: version(name) for name in form.packages},
            **proof.facts(),
        }
        write_json(folder / proof_path(target).name, facts)
        readme = folder / readme_path(target).name
        write_readme(readme, target.name, to, model_facts(file, with_scores))
        _move_into_place(folder, target)
    return Exported(target, proof, facts)


def default_path(model: Path, stem: str, suffix: str) -> Path:
    """Return RUN/export/model.onnx for a run folder, or a path beside the model file."""
    folder = model / "export" if model.is_dir() else model.parent
    return folder / f"{stem}{suffix}"


def proof_path(target: Path) -> Path:
    """Return where the proof of an exported file is: model.onnx.proof.json beside model.onnx."""
    return target.with_name(f"{target.name}.proof.json")


def model_facts(file: ModelFile | BlendFile, with_scores: bool = False) -> dict[str, Any]:
    """Return the metadata of an exported file: facts about its model, as JSON values.

    with_scores: the graph also computes out-of-distribution scores.
    """
    results = {name: value for name, value in file.results.items() if name not in _OMITTED_RESULTS}
    facts = {
        "format": FORMAT,
        "version": VERSION,
        **_network_facts(file),
        "temperature": file.temperature,
        "results": results,
        "provenance": {
            name: file.provenance[name] for name in _PROVENANCE if name in file.provenance
        },
    }
    if file.out_of_distribution and with_scores:
        facts["out_of_distribution"] = {
            "threshold": file.out_of_distribution.threshold,
            "share": file.out_of_distribution.false_alarm_rate,
        }
    return facts


def _check_targets(target: Path, model: Path, on: str | None) -> None:
    """Raise OutputError or DiskError for files that cannot be written, or must not be.

    An existing file is replaced only if it has the proof of an export beside it.
    """
    proof_file = proof_path(target)
    for path in (target, proof_file, readme_path(target)):
        check_output("--out", path, model=list_model_files(model), proof_on=on)
    proof = read_json(proof_file)
    if isinstance(proof, dict) and proof.get("file") == target.name:
        return
    for path in (target, proof_file):
        if path.exists():
            raise OutputError(
                f"{path} exists, and {proof_file.name} does not show that an export wrote it, so "
                "it is left as it is; choose another --out"
            )


def _network_facts(file: ModelFile | BlendFile) -> dict[str, Any]:
    """Return what is inside, and which images it takes; for a blend, those of its largest member.

    Converting images to the input of each network is a part of the graph.
    """
    facts = {
        "model": file.model,
        "classes": list(file.classes),
        "image": file.preprocessing.facts(),
    }
    if isinstance(file, BlendFile):
        facts["members"] = {
            name: {"model": member.model, "weight": file.member_weights[name]}
            for name, member in file.members.items()
        }
    return facts


def _compare_in_own_precision(
    file: ModelFile | BlendFile,
    module: str | None,
    exported: Classify,
    held_out: HeldOutImages,
) -> OwnPrecision | None:
    """Compare with what the model itself predicts; None if that is in fp32 too."""
    precisions = {member.preprocessing.precision for member in file.members.values()} - {"fp32"}
    if not precisions:
        return None
    cpu = torch.device("cpu")
    runner = TorchRunner(file, cpu, module)
    ids = _proof_ids(held_out)[:_OWN_IMAGES]
    loader = Loader(Images.of(held_out.pack), ids, min(runner.batch_size, len(ids)), cpu)
    proof = compare_outputs(_classify(runner), exported, loader.in_order())
    return OwnPrecision(
        joined(sorted(precisions)), proof.images, proof.agree, proof.largest_difference
    )


def _prove(
    predictor: Predictor, exported: Classify, held_out: HeldOutImages, reporter: Reporter
) -> ExportProof:
    in_torch = _classify(predictor.runner)
    images, cpu = Images.of(held_out.pack), torch.device("cpu")
    ids = _proof_ids(held_out)
    batch = min(predictor.runner.batch_size, len(ids))
    loader = Loader(images, ids, batch, cpu)
    with reporter.bar("prove", len(ids)) as bar:
        proof = compare_outputs(in_torch, exported, loader.in_order(), bar.advance)
    warn_if_busy(reporter)
    timed = images.gather(ids[:batch]).images.numpy()
    speeds = (compare_speed(in_torch, exported, timed[:size]) for size in sorted({1, batch}))
    right = proof.right if len(held_out.ids) else None
    return replace(proof, right=right, speeds=tuple(speeds))


def _classify(runner: Runner) -> Classify:
    return lambda images: runner.run(images).probabilities


def _proof_ids(held_out: HeldOutImages) -> Tensor:
    return held_out.ids if len(held_out.ids) else held_out.seen


def _move_into_place(folder: Path, target: Path) -> None:
    """Give the files their final names, the exported file last."""
    paths = sorted(folder.iterdir(), key=lambda path: path.name == target.name)
    with disk_errors(target):
        for path in paths:
            with open(path, "rb") as file:
                move_into_place(file, path, target.with_name(path.name))
