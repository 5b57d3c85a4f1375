"""Tensors and JSON facts in one safetensors file with a checksum.

The file's metadata contains the SHA-256 of the whole file, computed with the digest's own 64
characters zeroed. safetensors checks the structure; the digest covers every bit.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.torch import load, save
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
    """Read what write_tensors wrote; runs no code from the file. Raises DamagedFile.

    The bytes whose checksum is verified are those that the tensors are made of, in memory of their
    own: whoever writes over the file later changes nothing.
    """
    try:
        data, facts = _read_checked(path)
        return dict(sorted(load(data).items())), facts  # load returns them in any order
    except OSError as error:
        raise DamagedFile(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise DamagedFile(f"cannot read {path}: it does not fit into memory") from error
    except Exception as error:  # the safetensors parser raises many types, with one meaning here
        raise DamagedFile(f"{path} is damaged or not an Onsight file: {error}") from error


def _read_checked(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes of a file whose digest matches, and its facts. Raises ValueError and others."""
    if path.exists() and not path.is_file():  # opening a FIFO would wait for ever
        raise ValueError("it is no regular file")
    with open(path, "rb", buffering=0) as file:
        _read_metadata(file)  # so that a large file of another kind is refused before it is read
        file.seek(0)
        data = file.read()
    metadata = _read_metadata(BytesIO(data))
    digest = metadata["sha256"]
    if digest_around(data, _digest_place(data, digest)) != digest:
        raise ValueError("its checksum does not match")
    facts: dict[str, Any] = json.loads(metadata["facts"])
    return data, facts


def _digest_place(data: bytes | bytearray, digest: str) -> int:
    """The offset of the 64 characters of the digest."""
    mark = b'"sha256":"'
    place = data.find(mark + digest.encode())
    if place < 0:
        raise ValueError("it has no checksum")
    return place + len(mark)


def _read_metadata(file: BinaryIO) -> dict[str, str]:
    """The metadata in the header that a file begins with. Raises ValueError and others."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    header = file.read(length) if length <= TENSOR_HEADER_BYTES else b""
    if len(start) < 8 or len(header) < length:
        raise ValueError("it is truncated")
    metadata: dict[str, str] = json.loads(header)["__metadata__"]
    if len(metadata["sha256"]) != len(BLANK):
        raise ValueError("it has no checksum")
    return metadata
