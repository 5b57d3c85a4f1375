"""Tensors and JSON facts in one safetensors file with a checksum.

The file's metadata contains the SHA-256 of the whole file, computed with the digest's own 64
characters zeroed. safetensors checks the structure; the digest covers every bit.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.torch import load, save
from torch import Tensor

from onsight.errors import OnsightError
from onsight.files import BLANK_DIGEST, digest_around, write_atomically
from onsight.limits import TENSOR_HEADER_BYTES
from onsight.untrusted import open_regular, parse_json


class DamagedFile(OnsightError):
    """A tensor file is truncated, altered, or not a tensor file at all."""

    exit_code = 2


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts atomically. Raises DiskError."""
    metadata = {"facts": json.dumps(facts), "sha256": BLANK_DIGEST}
    # safetensors refuses tensors that share memory, as tied weights do: each is copied.
    copies = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    data = _with_metadata(save(copies, metadata=metadata), metadata)
    position = _digest_position(data, BLANK_DIGEST)
    data[position : position + len(BLANK_DIGEST)] = digest_around(data, position).encode()
    write_atomically(path, data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what write_tensors wrote; runs no code from the file. Raises DamagedFile.

    The tensors are made of the very bytes whose checksum was verified, in separate memory:
    overwriting the file later changes nothing.
    """
    try:
        data, facts = _read_verified(path)
        return dict(sorted(load(data).items())), facts  # load returns them in any order
    except OSError as error:
        raise DamagedFile(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise DamagedFile(f"cannot read {path}: it does not fit into memory") from error
    except Exception as error:  # the safetensors parser raises many types, with one meaning here
        raise DamagedFile(f"{path} is damaged or not an Onsight file: {error}") from error


def put_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a prefix before their names, to store them beside others."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def take_under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _read_verified(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return a file's bytes and facts if its digest matches. Raises ValueError and others."""
    with open(open_regular(path), "rb", buffering=0) as file:
        _read_metadata(file)  # rejects a large file of another kind before reading it whole
        file.seek(0)
        data = file.read()
    metadata = _read_metadata(BytesIO(data))
    digest = metadata["sha256"]
    if digest_around(data, _digest_position(data, digest)) != digest:
        raise ValueError("its checksum does not match")
    return data, parse_json(metadata["facts"], "surrogateescape")


def _with_metadata(data: bytes, metadata: dict[str, str]) -> bytearray:
    """Return a safetensors file with its metadata in the given order, which `save` shuffles."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start]) | {"__metadata__": metadata}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # as safetensors aligns the tensors
    return bytearray().join([len(text).to_bytes(8, "little"), text, memoryview(data)[start:]])


def _digest_position(data: bytes | bytearray, digest: str) -> int:
    """Return the offset of the digest's 64 characters."""
    key = b'"sha256":"'
    start = data.find(key + digest.encode())
    if start < 0:
        raise ValueError("it has no checksum")
    return start + len(key)


def _read_metadata(file: BinaryIO) -> dict[str, str]:
    """Read the metadata from the file's header. Raises ValueError and others."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    header = file.read(length) if length <= TENSOR_HEADER_BYTES else b""
    if len(start) < 8 or len(header) < length:
        raise ValueError("it is truncated")
    metadata: dict[str, str] = json.loads(header)["__metadata__"]
    if len(metadata["sha256"]) != len(BLANK_DIGEST):
        raise ValueError("it has no checksum")
    return metadata
