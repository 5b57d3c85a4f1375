"""Tensors and JSON facts in one safetensors file with a checksum.

The file's metadata contains the SHA-256 of the whole file, computed with the digest's own 64
characters zeroed. safetensors checks the structure; the digest covers every bit.
"""

import json
import mmap
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from onsight.checksum import BLANK, digest_around
from onsight.errors import OnsightError
from onsight.files import write_atomically
from onsight.limits import TENSOR_HEADER_BYTES


class DamagedFile(OnsightError):
    """A tensor file is truncated, altered, or not a tensor file at all."""

    exit_code = 2


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts atomically. Raises DiskError."""
    metadata = {"facts": json.dumps(facts), "sha256": BLANK}
    # safetensors refuses tensors that share memory, as tied weights do: each is copied.
    own = {name: one.detach().to("cpu", copy=True).contiguous() for name, one in tensors.items()}
    data = bytearray(save(own, metadata=metadata))
    place = _digest_place(data, BLANK)
    data[place : place + len(BLANK)] = digest_around(data, place).encode()
    write_atomically(path, data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Memory-map what write_tensors wrote; runs no code from the file. Raises DamagedFile."""
    try:
        facts = _checked_facts(path)
        return load_file(path), facts
    except OSError as error:
        raise DamagedFile(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # the safetensors parser raises many types, with one meaning here
        raise DamagedFile(f"{path} is damaged or not an Onsight file: {error}") from error


def _checked_facts(path: Path) -> dict[str, Any]:
    """The facts of a file, after checking its digest. Raises ValueError and others."""
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise ValueError("it is no regular file")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        metadata = _metadata(data)
        digest = metadata["sha256"]
        place = _digest_place(data, digest)
        with memoryview(data) as view:
            found = digest_around(view, place)
        if found != digest:
            raise ValueError("its checksum does not match")
        facts: dict[str, Any] = json.loads(metadata["facts"])
        return facts


def _digest_place(data: bytearray | mmap.mmap, digest: str) -> int:
    """The offset of the 64 characters of the digest."""
    mark = b'"sha256":"'
    place = data.find(mark + digest.encode())
    if place < 0:
        raise ValueError("it has no checksum")
    return place + len(mark)


def _metadata(data: mmap.mmap) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, TENSOR_HEADER_BYTES):
        raise ValueError("it is truncated")
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    if len(metadata["sha256"]) != 64:
        raise ValueError("it has no checksum")
    return metadata
