"""Write a folder for the Hugging Face Hub: weights that Onsight and timm both read, and a card.

Its model.safetensors is an Onsight model file that holds only the network's tensors, under timm's
names; config.json describes the network and its input to timm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn

from onsight.config import PLACES
from onsight.data.fit import Fit
from onsight.errors import OutputError
from onsight.files import check_output, has_mark, refuse_no_folder, write_json
from onsight.inference.predictor import list_model_files
from onsight.models.build import build_model
from onsight.models.catalog import builtin_names, is_user_spec
from onsight.models.file import FILE_NAME, BlendFile, ModelFile, save_model
from onsight.models.head import find_heads
from onsight.models.timm_nets import timm_facts
from onsight.report.card import CARD_MARK, FolderNote, write_card
from onsight.report.card_facts import read_card_subject

_CARD, _CONFIG = "README.md", "config.json"
_CROP_MODES: dict[Fit, str] = {"stretch": "squash", "crop": "center", "pad": "border"}
_IMAGES = 2  # random images for the comparison with timm
_TOLERANCE = 1e-4  # largest difference of logits, relative to the largest logit


@dataclass(frozen=True)
class HubFolder:
    """A folder written for the Hugging Face Hub."""

    path: Path
    timm_problem: str = ""  # why timm cannot load the folder; empty if it can
    difference: float = 0.0  # largest between the logits in timm and in Onsight


def write_hub_folder(model: Path, folder: Path, license_name: str | None = None) -> HubFolder:
    """Write config.json, model.safetensors and README.md for a run folder or model file.

    A network of timm is loaded by timm from the folder and compared. The folder of any other
    network has no config.json and is for Onsight alone. Raises OutputError for a folder that holds
    other files, ModelError, DiskError.
    """
    refuse_no_folder(folder)
    is_ours = has_mark(folder / _CARD, CARD_MARK.encode())
    if folder.is_dir() and any(folder.iterdir()) and not is_ours:
        raise OutputError(f"{folder} holds other files; choose an empty or new folder with --out")
    check_output("--out", folder / FILE_NAME, model=list_model_files(model))
    subject = read_card_subject(model)
    file = _without_local_paths(subject.file, subject.data_name)
    timm_problem, difference = _why_no_timm(file), 0.0
    (folder / _CONFIG).unlink(missing_ok=True)
    if isinstance(file, ModelFile) and not timm_problem:
        scaled = _with_temperature_in_head(file)
        save_model(folder / FILE_NAME, scaled, weights_only=True)
        write_json(folder / _CONFIG, _timm_config(file))
        timm_problem, difference = _compare_with_timm(file, scaled, folder)
        file = scaled
    if timm_problem:
        (folder / _CONFIG).unlink(missing_ok=True)
        save_model(folder / FILE_NAME, file, weights_only=True)
    note = _describe(file, timm_problem)
    write_card(subject, folder / _CARD, license_name, FolderNote(note, timm=not timm_problem))
    return HubFolder(folder, timm_problem, difference)


def _without_local_paths(file: ModelFile | BlendFile, data_name: str) -> ModelFile | BlendFile:
    """Return the file without paths on the machine that trained it."""
    config = dict(file.provenance.get("config") or {})
    for name in ("weights", *PLACES):
        config[name] = PurePath(str(config.get(name, ""))).name
    known = {name: value for name, value in file.provenance.items() if name != "found"}
    return replace(file, provenance={**known, "data": data_name, "config": config})


def _why_no_timm(file: ModelFile | BlendFile) -> str:
    if isinstance(file, BlendFile):
        return "it is a blend of several networks"
    if file.model in builtin_names() or is_user_spec(file.model):
        return f"'{file.model}' is not one of its networks"
    if file.uses_all_layers:
        return "its head is on intermediate layers too, unlike those of timm's networks"
    if file.hidden_units:
        return "Onsight gave its head a hidden layer, which timm's networks do not have"
    return ""


def _with_temperature_in_head(file: ModelFile) -> ModelFile:
    """Return the file with its last layers divided by the temperature, which timm does not have.

    A file whose network does not end in linear layers or convolutions is returned unchanged.
    """
    net = build_model(file)
    heads = find_heads(net)
    if not heads or not all(isinstance(head, nn.Linear | nn.Conv2d) for head in heads):
        return file
    names = {name for name, part in net.named_modules() if any(part is head for head in heads)}
    weights = {
        name: tensor / file.temperature if name.rpartition(".")[0] in names else tensor
        for name, tensor in file.weights.items()
    }
    return replace(file, weights=weights, temperature=1.0)


def _timm_config(file: ModelFile) -> dict[str, Any]:
    """Return the config that timm's loaders read, in the form that timm's `save_for_hf` writes."""
    facts, shape = timm_facts(file.model), file.preprocessing.input_shape
    known: Mapping[str, Any] = vars(facts) if facts else {}
    fixed = bool(known.get("fixed_input_size"))
    arguments = {"in_chans": shape[0]} | ({"img_size": list(shape[1:])} if fixed else {})
    return {
        "architecture": file.model.partition(".")[0],
        "num_classes": len(file.classes),
        "label_names": list(file.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": list(shape),
            "fixed_input_size": fixed,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": _CROP_MODES[file.preprocessing.fit],
            "mean": list(file.preprocessing.mean),
            "std": list(file.preprocessing.std),
            "num_classes": len(file.classes),
            "first_conv": known.get("first_conv"),
            "classifier": known.get("classifier"),
        },
    }


@torch.inference_mode()
def _compare_with_timm(file: ModelFile, written: ModelFile, folder: Path) -> tuple[str, float]:
    """Return why timm cannot load the folder (empty if it can), and the largest difference."""
    shape = (_IMAGES, *file.preprocessing.input_shape)
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = build_model(file)(inputs) * (written.temperature / file.temperature)
    try:
        logits = _load_with_timm(folder)(inputs)
    except Exception as error:  # timm's networks raise many kinds
        return f"timm cannot load it: {type(error).__name__}: {error}", 0.0
    difference = _largest(logits - expected)
    if logits.shape == expected.shape and difference <= _TOLERANCE * max(1.0, _largest(expected)):
        return "", difference
    return f"timm's logits differ from Onsight's by up to {difference:.2g}", 0.0


def _load_with_timm(folder: Path) -> nn.Module:
    import timm

    with torch.random.fork_rng(devices=[]):
        net: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
    return net.eval()


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _describe(file: ModelFile | BlendFile, timm_problem: str) -> str:
    if timm_problem:
        return f"timm cannot load this folder: {timm_problem}."
    grey = " Convert images to greyscale (L) first." if file.preprocessing.channels == 1 else ""
    scale = (
        ""
        if file.temperature == 1
        else f" Divide its logits by {file.temperature:g} for calibrated probabilities."
    )
    return (
        "timm loads it as well, with the same logits for the same input; it resizes images with "
        f"other code, so predictions for single images may differ slightly.{grey}{scale}"
    )
