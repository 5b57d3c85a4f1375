"""The index beside shards, in the form of webdataset's `wids`: what each shard should be.

Source: https://github.com/webdataset/webdataset (wids/wids_index.py writes them).
"""

import json
import posixpath
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from onsight.errors import DataError
from onsight.limits import REMOTE_FILES, SHARD_INDEX_BYTES
from onsight.text import data_size

INDEX_NAME = "index.json"  # name that webdataset's `widsindex` and `onsight shard` use


class ListedShard(NamedTuple):
    """What an index says about a shard; None where it says nothing."""

    size: int | None = None  # bytes
    md5sum: str | None = None
    samples: int | None = None  # number of images with what belongs to them


def _tidy_name(name: str) -> str:
    tidy = posixpath.normpath(name)
    if not name.isprintable() or tidy.startswith("/") or tidy.split("/")[0] in (".", ".."):
        raise ValueError("it is not the path of a file below the index")
    return tidy


class _Entry(BaseModel):
    url: Annotated[str, AfterValidator(_tidy_name)]
    filesize: int | None = Field(None, ge=0, strict=True)
    md5sum: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    nsamples: int | None = Field(None, ge=0, strict=True)


class _Index(BaseModel):
    shardlist: list[_Entry] = Field([], max_length=REMOTE_FILES)


def read_index(path: Path) -> dict[str, ListedShard]:
    """Return what a local index lists, by name; empty if there is none. Raises DataError."""
    if not path.is_file():
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(SHARD_INDEX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return parse_index(content, str(path))


def parse_index(content: bytes, where: str) -> dict[str, ListedShard]:
    """Return what an index lists, by name; empty if it is a file of another kind.

    where: its path or URL. Raises DataError, which names the wrong key.
    """
    if len(content) > SHARD_INDEX_BYTES:
        raise DataError(f"{where} has more than {data_size(SHARD_INDEX_BYTES)}; use larger shards")
    remedy = "correct it, or remove it to read the shards unchecked"
    try:
        entries = _Index.model_validate(json.loads(content)).shardlist
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{where}: {key or 'the whole file'}: {first['msg']}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON ({error}); {remedy}") from error
    return {
        entry.url: ListedShard(entry.filesize, entry.md5sum, entry.nsamples) for entry in entries
    }
