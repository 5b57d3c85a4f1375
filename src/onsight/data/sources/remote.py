"""DATA behind a URL: WebDataset tars or Hugging Face Parquet files that fsspec can reach."""

from pathlib import Path

from onsight.data.shards.address import UrlPath
from onsight.data.shards.remote import Remote, RemoteFile
from onsight.data.shards.remote_shards import RemoteShards
from onsight.data.shards.shard_cache import ShardCache
from onsight.data.sources.hugging_face import parquet_source
from onsight.data.sources.reading import Reading
from onsight.data.sources.source import Room, Source
from onsight.data.sources.web_dataset import web_dataset
from onsight.errors import DataError

_TAR, _PARQUET = ".tar", ".parquet"
_FORMATS = {_TAR: "webdataset", _PARQUET: "huggingface"}


def read_remote(url: str, reading: Reading, cache_folder: Path | None) -> Source:
    """The shards of a URL. Raises DataError, RemoteFailed, DiskError."""
    remote = Remote.open(url)
    files = remote.files((_TAR, _PARQUET))
    ending = _ending(url, files, reading.data_format)
    files = [file for file in files if file.name.endswith(ending)]
    limit = int(reading.shard_cache_gigabytes * 1e9)
    cache = ShardCache(cache_folder and cache_folder / "shards", limit)
    store = RemoteShards(remote, files, cache)
    root = UrlPath(url)
    room = Room(max(file.size for file in files), cache.limit_bytes)
    if ending == _TAR:
        return web_dataset(root, store, cache_folder, room)
    return parquet_source(root, store, reading.label, cache_folder, room)


def _ending(url: str, files: list[RemoteFile], data_format: str) -> str:
    """The ending of the shards' names. Raises DataError."""
    found = [
        ending
        for ending, name in _FORMATS.items()
        if data_format in ("auto", name) and any(file.name.endswith(ending) for file in files)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(
            f"{url} holds both .tar and .parquet files; say --data-format webdataset or huggingface"
        )
    raise DataError(
        f"{url} holds no shards (.tar or .parquet). `onsight shard DATA --out {url}` writes them "
        "from images of this machine; other kinds of DATA have to be copied here"
    )
