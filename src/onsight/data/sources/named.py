"""Datasets by name: downloaded by torchvision, put in place by the user, or generated."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.arrays import LabelledImages, build_array_source
from onsight.data.sources.cifar import read_cifar
from onsight.data.sources.folder import read_folder
from onsight.data.sources.idx import read_idx
from onsight.data.sources.source import Source, compute_fingerprint
from onsight.errors import DataError, MissingDataset, did_you_mean
from onsight.files import disk_errors

_TIMEOUT_SECONDS = 30.0
_PETS = "PetImages"
VECTORS = "random-vectors"

_VECTORS_PER_SPLIT = 100
_VECTOR_LENGTH = 5
_VECTOR_SEED = 0
_MIDDLE_SUM = _VECTOR_LENGTH * 255 / 2  # middle of possible sums; no sum of integers equals it


class _NamedSet(NamedTuple):
    """A dataset that torchvision downloads."""

    torchvision_class: str
    folder: str  # folder that torchvision fills, relative to its root
    files: str  # required files, for users who fill the folder by hand
    read: Callable[[Path], Source]


_IDX_FILES = (
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"
)

NAMED_SETS = {
    "cifar10": _NamedSet(
        "CIFAR10", "cifar-10-batches-py", "the files inside cifar-10-python.tar.gz", read_cifar
    ),
    "cifar100": _NamedSet(
        "CIFAR100", "cifar-100-python", "the files inside cifar-100-python.tar.gz", read_cifar
    ),
    "mnist": _NamedSet("MNIST", "MNIST/raw", _IDX_FILES, read_idx),
    "fashion-mnist": _NamedSet("FashionMNIST", "FashionMNIST/raw", _IDX_FILES, read_idx),
    "kmnist": _NamedSet("KMNIST", "KMNIST/raw", _IDX_FILES, read_idx),
    "eurosat": _NamedSet(
        "EuroSAT", "eurosat/2750", "the class folders of EuroSAT.zip", read_folder
    ),
    "imagenette": _NamedSet(
        "Imagenette", "imagenette2", "train and val of imagenette2.tgz", read_folder
    ),
}
NAMES = (*NAMED_SETS, _PETS, VECTORS)


def match_name(data: str) -> str | None:
    """Return a dataset's name, however it is spelt (FashionMNIST, CIFAR-10), or None."""
    names = {_simplify(name): name for name in NAMES}
    return names.get(_simplify(data))


def read_named(data: str) -> Source:
    """Return a dataset by its name, downloaded on first use if possible.

    Raises DataError for an unknown name; AbsentData, which lists the required files, if they cannot
    be downloaded.
    """
    name = match_name(data)
    if name is None:
        known = ", ".join(NAMES)
        hint = did_you_mean(data.lower(), NAMES)
        raise DataError(f"no dataset is called '{data}'.{hint} Known names are {known}.")
    if name == VECTORS:
        return draw_vectors()
    return _read_pets() if name == _PETS else _read_downloaded(name)


def needs_download(data: str) -> bool:
    """Return whether reading this name would download it first."""
    chosen = NAMED_SETS.get(match_name(data) or "")
    return chosen is not None and not (find_named_root() / chosen.folder).is_dir()


def find_named_root() -> Path:
    """Return the folder of named sets: $ONSIGHT_DATA, else onsight/datasets in the user's cache."""
    own = os.environ.get("ONSIGHT_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(own).expanduser() if own else Path(base).expanduser() / "onsight" / "datasets"


def draw_vectors() -> Source:
    """Return 100 training and 100 test vectors of 5 numbers, as grey images of 1x5.

    A vector whose sum is below the middle is labelled low, the others high.
    """
    # The raw words of a bit generator stay the same in every numpy; its distributions may not.
    count, length = _VECTORS_PER_SPLIT, _VECTOR_LENGTH
    words = np.random.PCG64(_VECTOR_SEED).random_raw(2 * count * length // 8)
    pixels = words.astype("<u8").view(np.uint8).reshape(2 * count, 1, length, 1)
    labels = (pixels.sum(axis=(1, 2, 3)) > _MIDDLE_SUM).astype(np.int64)
    parts = [
        LabelledImages(TRAIN, pixels[:count], labels[:count]),
        LabelledImages(TEST, pixels[count:], labels[count:]),
    ]
    source = build_array_source(
        VECTORS, "random vectors", Path(VECTORS), [], parts, ["low", "high"]
    )
    return replace(source, fingerprint=compute_fingerprint([VECTORS, pixels.tobytes().hex()]))


def _read_downloaded(name: str) -> Source:
    root, chosen = find_named_root(), NAMED_SETS[name]
    folder = root / chosen.folder
    if not folder.is_dir():
        _download(name, chosen, root)
    source = chosen.read(folder)
    return replace(source, description=f"{name} in {folder}: {source.description}")


def _read_pets() -> Source:
    """Return cats and dogs, from the current folder or else from the folder of named sets."""
    for folder in (Path(_PETS), find_named_root() / _PETS):
        if folder.is_dir():
            source = read_folder(folder)
            return replace(source, description=f"{_PETS} in {source.root}: {source.description}")
    raise MissingDataset(
        f"{_PETS} is neither in the current folder nor in {find_named_root()}, and cannot be "
        'downloaded automatically.\nGet Microsoft\'s "Kaggle Cats and Dogs Dataset", unpack it, '
        f"and put its folder {_PETS}, with Cat and Dog inside, into either; or give the folder "
        "that holds them: onsight train FOLDER"
    )


def _download(name: str, chosen: _NamedSet, root: Path) -> None:
    """Let torchvision download and check a set in a temporary folder, then move it into place."""
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".download-", dir=root)
    with temporary as folder:
        try:
            _fetch(chosen.torchvision_class, folder)
        except Exception as error:  # after any failure, the user can still provide the files
            raise _cannot_download(name, chosen, root, error) from error
        with disk_errors(root):
            _move(Path(folder) / chosen.folder, root / chosen.folder)


def _fetch(torchvision_class: str, root: str) -> None:
    from torchvision import datasets

    usual_timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)  # a network that drops packets counts as unavailable
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result
            getattr(datasets, torchvision_class)(root, download=True)
    finally:
        socket.setdefaulttimeout(usual_timeout)


def _move(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():  # else a faster run has put the same files there
            raise


def _cannot_download(name: str, chosen: _NamedSet, root: Path, error: Exception) -> MissingDataset:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return MissingDataset(
        f"{name} is not in {root} and cannot be downloaded: {reason}\n"
        f"Put {chosen.files} into {root / chosen.folder}, or give the folder that holds "
        "them: onsight train FOLDER"
    )


def _simplify(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
