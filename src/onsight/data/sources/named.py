"""Data sets by name: downloaded by torchvision, put there by the user, or generated."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from onsight.data.sources.cifar import read_cifar
from onsight.data.sources.folder import read_folder
from onsight.data.sources.idx import read_idx
from onsight.data.sources.random_vectors import VECTORS, draw_vectors
from onsight.data.sources.source import Source
from onsight.errors import AbsentData, DataError, did_you_mean
from onsight.files import disk_errors

_TIMEOUT_SECONDS = 30.0
_PETS = "PetImages"


class _NamedSet(NamedTuple):
    """torchvision's class, the folder it fills below its root, its files, and our reader."""

    torchvision_class: str
    folder: str
    files: str
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


def known_name(data: str) -> str | None:
    """The name of a set, however it is spelt: FashionMNIST, fashion_mnist, CIFAR-10."""
    plain = {_plain(name): name for name in NAMES}
    return plain.get(_plain(data))


def read_named(data: str) -> Source:
    """A data set by its name, downloaded on first use if possible.

    Raises DataError for an unknown name; AbsentData, which says which files to put where, if
    they cannot be downloaded.
    """
    name = known_name(data)
    if name is None:
        known = ", ".join(NAMES)
        hint = did_you_mean(data.lower(), NAMES)
        raise DataError(f"no data set is called '{data}'.{hint} Known names are {known}.")
    if name == VECTORS:
        return draw_vectors()
    return _read_pets() if name == _PETS else _read_downloaded(name)


def needs_download(data: str) -> bool:
    """Whether reading this name would download it first."""
    chosen = NAMED_SETS.get(known_name(data) or "")
    return chosen is not None and not (named_root() / chosen.folder).is_dir()


def _read_downloaded(name: str) -> Source:
    root, chosen = named_root(), NAMED_SETS[name]
    folder = root / chosen.folder
    if not folder.is_dir():
        _download(name, chosen, root)
    source = chosen.read(folder)
    return replace(source, found=f"{name} in {folder}: {source.found}")


def _read_pets() -> Source:
    """Cats and dogs, from the current folder or else from the folder of named sets."""
    for folder in (Path(_PETS), named_root() / _PETS):
        if folder.is_dir():
            source = read_folder(folder)
            return replace(source, found=f"{_PETS} in {source.root}: {source.found}")
    raise AbsentData(
        f"{_PETS} is neither in the current folder nor in {named_root()}, and cannot be downloaded "
        'automatically.\nGet Microsoft\'s "Kaggle Cats and Dogs Dataset", unpack it, and '
        f"put its folder {_PETS}, with Cat and Dog inside, into either; or give the folder that "
        "holds them: onsight train FOLDER"
    )


def named_root() -> Path:
    """The folder of named sets: $ONSIGHT_DATA, else onsight/datasets in the user's cache."""
    own = os.environ.get("ONSIGHT_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(own).expanduser() if own else Path(base).expanduser() / "onsight" / "datasets"


def _download(name: str, chosen: _NamedSet, root: Path) -> None:
    """Let torchvision download and check a set in a temporary folder, then move it into place."""
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".download-", dir=root)
    with temporary as folder:
        try:
            _fetch(chosen.torchvision_class, folder)
        except Exception as error:  # whatever failed, the user can still put the files there
            raise _cannot_download(name, chosen, root, error) from error
        with disk_errors(root):
            _move(Path(folder) / chosen.folder, root / chosen.folder)


def _fetch(torchvision_class: str, root: str) -> None:
    from torchvision import datasets

    usual_timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)  # a network that swallows packets counts as none
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout holds the result
            getattr(datasets, torchvision_class)(root, download=True)
    finally:
        socket.setdefaulttimeout(usual_timeout)


def _move(folder: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(place)
    except OSError:
        if not place.is_dir():  # otherwise another run was faster; its files are the same
            raise


def _cannot_download(name: str, chosen: _NamedSet, root: Path, error: Exception) -> AbsentData:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return AbsentData(
        f"{name} is not in {root} and cannot be downloaded: {reason}\n"
        f"Put {chosen.files} into {root / chosen.folder}, or give the folder that holds "
        "them: onsight train FOLDER"
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
