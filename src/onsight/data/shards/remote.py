"""Files behind an fsspec URL: listed with what changes when they do, and read in parts."""

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from onsight.data.shards.address import spelt_out
from onsight.data.shards.retry import retried
from onsight.errors import DataError, RemoteFailed

INDEX_NAME = "index.json"  # as `widsindex` of webdataset and `onsight shard` write it
_DEPTH, _DEEPEST = 2, 32  # levels below the URL that are looked into; for ** in it
_SILENCE_SECONDS = 30  # without a byte, after which a connection counts as lost
_AT_ONCE = 16  # requests for the facts of files
# What opens URLs of a scheme; other schemes may be opened by packages of their users' choice.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a", "http", "https"), "'onsight[remote]'"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
}
_VERSIONS = ("ETag", "etag", "md5Hash", "Content-MD5", "LastModified", "Last-Modified", "mtime")


@dataclass(frozen=True)
class RemoteFile:
    """A file: its name below the URL, its path in the filesystem, bytes, and its version."""

    name: str
    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Remote:
    """A URL that is opened: filesystem is fsspec's, root the path in it."""

    url: str
    filesystem: Any
    root: str

    @classmethod
    def open(cls, url: str) -> "Remote":
        """Raises DataError where no installed package opens such a URL."""
        try:
            from fsspec.core import url_to_fs

            filesystem, root = url_to_fs(url, **_options(url))
        except ImportError as error:
            package = _PACKAGES.get(url.partition("://")[0].lower())
            remedy = f"pip install {package}" if package else str(error)
            raise DataError(f"{url} needs a package that is not installed: {remedy}") from error
        except ValueError as error:
            raise DataError(f"{url} cannot be opened: {error}") from error
        if _is_s3(url):
            filesystem.retries = 1  # `retried` asks again, and says so
        return cls(url, filesystem, root)

    def files(self, endings: tuple[str, ...]) -> list[RemoteFile]:
        """The files with such endings that the URL stands for, by name. Raises DataError."""
        try:
            found = self._listed()
        except RemoteFailed:
            raise
        except Exception as error:
            raise DataError(
                f"{self.url} cannot be listed: {type(error).__name__}: {error}. Check the address "
                "and your access (s3: AWS_PROFILE or AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL; "
                f"FSSPEC_S3_ANON=true for public data). Where a server cannot list, name the "
                f"shards, as .../train-{{0000..0099}}.tar, or put an {INDEX_NAME} beside them"
            ) from error
        wanted = {path: facts for path, facts in found.items() if path.endswith(endings)}
        root = self._common_root(wanted)
        files = (_file(path, facts, root) for path, facts in self._complete(wanted).items())
        return sorted(files, key=lambda file: file.name)

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Bytes start to end of a file, asked for again if the connection breaks.

        Raises RemoteFailed; DataError for what does not pass, such as 403 and 404.
        """

        def part() -> bytes:
            content: bytes = self.filesystem.cat_file(file.path, start=start, end=end)
            if len(content) == file.size > end - start:  # the server knows no ranges
                content = content[start:end]
            if len(content) != end - start:
                raise ConnectionError(f"{len(content):,} bytes came instead of {end - start:,}")
            return content

        try:
            return retried(part, f"{self.url}: {file.name}") if end > start else b""
        except RemoteFailed:
            raise
        except Exception as error:
            raise DataError(
                f"{self.url}: {file.name} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _listed(self) -> dict[str, Mapping[str, Any]]:
        """The files below the URL with what a listing tells about them."""
        self.filesystem.invalidate_cache()
        if "{" in self.root:
            return {path: {} for path in spelt_out(self.root)}
        if any(sign in self.root for sign in "*["):
            return self._matching()
        if self.root.endswith((".tar", ".parquet")):
            return {self.root: {}}
        if _is_http(self.root) and (named := self._named_by_index()):
            return named
        try:
            found = self._below(self.root, _DEPTH)
        except (FileNotFoundError, PermissionError):  # what cannot be listed may be read
            found = {}
        return found or self._named_by_index()

    def _matching(self) -> dict[str, Mapping[str, Any]]:
        """The files that a pattern stands for."""
        from fsspec.utils import glob_translate

        pattern = re.compile(glob_translate(self.root))
        folder = re.split(r"[*\[]", self.root)[0].rpartition("/")[0]
        depth = _DEEPEST if "**" in self.root else self.root.count("/") - folder.count("/")
        found = self._below(folder, depth)
        return {path: facts for path, facts in found.items() if pattern.match(path)}

    def _below(self, folder: str, depth: int) -> dict[str, Mapping[str, Any]]:
        """The files in a folder and so many levels of it.

        fsspec's find and glob leave out a folder whose listing fails, if only for a moment.
        """
        start = f"{folder.rstrip('/')}/" if folder else ""
        listed: list[Mapping[str, Any]] = retried(
            lambda: self.filesystem.ls(folder, detail=True), self.url
        )
        found: dict[str, Mapping[str, Any]] = {}
        for facts in listed:
            path = str(facts["name"])
            if not path.startswith(start) or path == start:  # a web page links to other places too
                continue
            if facts.get("type") != "directory":
                found[path] = facts
            elif depth > 1:
                found |= self._below(path, depth - 1)
        return found

    def _named_by_index(self) -> dict[str, Mapping[str, Any]]:
        """The shards that an index file beside them lists."""
        root = self.root.rstrip("/")
        try:
            text = retried(lambda: self.filesystem.cat_file(f"{root}/{INDEX_NAME}"), self.url)
            return {f"{root}/{one['url']}": {} for one in json.loads(text)["shardlist"]}
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return {}

    def _complete(self, found: dict[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The same with size and version asked for where the listing has not told them."""
        missing = [
            path for path, facts in found.items() if not (facts.get("size") and _version(facts))
        ]

        def ask(path: str) -> Mapping[str, Any]:
            try:
                facts: Mapping[str, Any] = retried(lambda: self.filesystem.info(path), path)
            except (FileNotFoundError, PermissionError) as error:
                raise DataError(
                    f"{path} cannot be read: {error or type(error).__name__}"
                ) from error
            if facts.get("size") is None:
                raise DataError(f"the server does not tell the size of {path}")
            return facts

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return found | dict(zip(missing, pool.map(ask, missing), strict=True))

    def _common_root(self, paths: Iterable[str]) -> str:
        root = self.root.rstrip("/")
        if all(path.startswith(f"{root}/") for path in paths):
            return root
        return root.partition("{")[0].partition("*")[0].rpartition("/")[0]


def _options(url: str) -> dict[str, Any]:
    """How to open a URL: beside fsspec's own configuration, what a request may cost."""
    if _is_http(url):
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        return {"client_kwargs": {**_configured("http", "client_kwargs"), "timeout": timeout}}
    if _is_s3(url):
        # Five tries of botocore for each of five of s3fs for each of ours made a server that is
        # silent one for most of an hour.
        once = {"retries": {"total_max_attempts": 1}, "read_timeout": _SILENCE_SECONDS}
        return {"config_kwargs": {**_configured("s3", "config_kwargs"), **once}}
    return {}


def _configured(protocol: str, name: str) -> dict[str, Any]:
    """An option in fsspec's configuration, which a given one would replace as a whole."""
    from fsspec.config import conf

    found: dict[str, Any] = conf.get(protocol, {}).get(name, {})
    return found


def _is_s3(url: str) -> bool:
    return url.startswith(("s3://", "s3a://"))


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _file(path: str, facts: Mapping[str, Any], root: str) -> RemoteFile:
    name = path.removeprefix(root).lstrip("/")
    return RemoteFile(name, path, int(facts["size"]), _version(facts))


def _version(facts: Mapping[str, Any]) -> str:
    """What changes with the content: an ETag, a checksum or a time; empty if nothing is told."""
    return next((str(facts[name]) for name in (*_VERSIONS, "created") if facts.get(name)), "")
