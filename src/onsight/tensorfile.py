"""Tensors and facts in one safetensors file that notices damage.

The SHA-256 of the whole file, with the digest's own 64 characters zeroed, stands in
the file's metadata. safetensors checks the structure; the digest covers every bit.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from onsight.errors import OnsightError
from onsight.files import write_atomically

_BLANK = "0" * 64
_HEADER_LIMIT_BYTES = 100_000_000


class DamagedFile(OnsightError):
    """A tensor file is cut short, altered or no tensor file at all."""

    exit_code = 2


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts atomically. Raises DiskError."""
    metadata = {"facts": json.dumps(facts), "sha256": _BLANK}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    data = bytearray(save(contiguous, metadata=metadata))
    digest = hashlib.sha256(data).hexdigest()
    place = data.index(f'"sha256":"{_BLANK}"'.encode()) + len('"sha256":"')
    data[place : place + 64] = digest.encode()
    write_atomically(path, bytes(data))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what write_tensors wrote. Raises DamagedFile; never runs code from the file."""
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise DamagedFile(f"cannot read {path}: {error.strerror or error}") from error
    try:
        metadata = _metadata(data)
        digest = metadata["sha256"]
        place = data.index(f'"sha256":"{digest}"'.encode()) + len('"sha256":"')
        data[place : place + 64] = _BLANK.encode()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError("its checksum does not match")
        return load(bytes(data)), json.loads(metadata["facts"])
    except Exception as error:  # the safetensors parser has many kinds; all mean the same here
        raise DamagedFile(f"{path} is damaged or no Onsight file: {error}") from error


def _metadata(data: bytearray) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _HEADER_LIMIT_BYTES):
        raise ValueError("it is cut short")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    if not isinstance(metadata, dict) or len(metadata["sha256"]) != 64:
        raise ValueError("it has no checksum")
    return metadata
