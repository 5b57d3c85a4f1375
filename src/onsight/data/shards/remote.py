"""Files behind an fsspec URL: list them with a version that changes with the content, and read."""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PosixPath
from typing import Any

from onsight.data.shards.retry import call_with_retries
from onsight.data.shards.shard_index import INDEX_NAME, ListedShard, parse_index
from onsight.errors import DataError, RemoteFailed
from onsight.limits import BRACE_CHARACTERS, REMOTE_FILES, SHARD_INDEX_BYTES

_DEPTH, _MAX_DEPTH = 2, 32  # listed levels below the URL: without **, with **
_SILENCE_SECONDS = 30  # seconds without a byte until a connection to S3 counts as lost
_PARALLEL_REQUESTS = 16  # simultaneous requests for file sizes and versions
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z][A-Za-z0-9+.-]*)*://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
# Package that opens the URLs of a scheme. Users may install packages for other schemes.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a", "http", "https"), "'onsight[remote]'"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
}
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "Content-MD5", "LastModified", "Last-Modified", "mtime")

_Facts = Mapping[str, Any]  # fsspec's properties of a file


class UrlPath(PosixPath):
    """A URL in place of a source's path; only its text is meaningful."""

    def __str__(self) -> str:
        """Return the URL, with the second slash that a path drops."""
        return re.sub(r":/(?=[^/]|$)", "://", super().__str__(), count=1)


def is_url(text: str) -> bool:
    """Return whether a text is an address for fsspec, such as s3://bucket/folder."""
    return _SCHEME.match(text) is not None


def strip_file_scheme(text: str) -> str:
    """Return the path of a file:// URL, and any other text as it is."""
    return text.removeprefix("file://") if text.startswith("file:///") else text


def expand_braces(text: str) -> list[str]:
    """Return the addresses that braces stand for: a-{000..002}.tar, a-{x,y}.tar.

    Raises DataError if they are too many.
    """
    addresses = [""]
    for number, piece in enumerate(_BRACES.split(text)):
        count, parts = _expand_brace(piece) if number % 2 else (1, [piece])
        if len(addresses) * count * len(text) > BRACE_CHARACTERS:
            raise DataError(f"{text} stands for too many addresses; correct its braces")
        addresses = [start + part for part in parts for start in addresses]
    return addresses


def _expand_brace(inside: str) -> tuple[int, Iterable[str]]:
    """Return the number of texts that a brace stands for, and these."""
    limits = _RANGE.fullmatch(inside)
    if limits is None:
        parts = inside.split(",")
        return len(parts), parts
    first, last = limits.groups()
    numbers = range(int(first), int(last) + 1)
    return numbers.stop - numbers.start, (f"{number:0{len(first)}d}" for number in numbers)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL."""

    name: str  # path relative to the URL
    path: str  # path in the filesystem
    size: int  # bytes
    version: str  # text that changes with the content; empty if the server reports nothing
    listed: ListedShard  # what the index beside it says about it


@dataclass(frozen=True)
class Remote:
    """An opened URL."""

    url: str
    filesystem: Any  # fsspec filesystem
    root: str  # the URL's path in the filesystem

    @classmethod
    def open(cls, url: str) -> "Remote":
        """Open a URL. Raises DataError if no installed package can."""
        try:
            from fsspec.core import url_to_fs

            if _is_http(url):
                from onsight.data.shards.bounded_http import BoundedHttp, bounded_client

                client = bounded_client(_configured("http", "client_kwargs"))
                return cls(url, BoundedHttp(client_kwargs=client), url)
            filesystem, root = url_to_fs(url, **_options(url))
        except ImportError as error:
            package = _PACKAGES.get(url.partition("://")[0].lower())
            remedy = f"pip install {package}" if package else str(error)
            raise DataError(f"{url} needs a package that is not installed: {remedy}") from error
        except ValueError as error:
            raise DataError(f"{url} cannot be opened: {error}") from error
        if _is_s3(url):
            filesystem.retries = 1  # call_with_retries repeats requests and logs the retries
        return cls(url, filesystem, root)

    def files(self, endings: tuple[str, ...]) -> list[RemoteFile]:
        """Return the files with these endings that the URL stands for, sorted by name.

        Raises DataError, RemoteFailed.
        """
        try:
            listing, index = self._list()
            listing = {path: facts for path, facts in listing.items() if path.endswith(endings)}
            root = self._common_root(listing)
            files = [
                _describe(path, facts, root, index.get(path, ListedShard()))
                for path, facts in self._complete(listing).items()
            ]
        except (DataError, RemoteFailed):
            raise
        except Exception as error:
            raise DataError(
                f"{self.url} cannot be listed: {type(error).__name__}: {error}. Check the address "
                "and your access (s3: AWS_PROFILE or AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL; "
                f"FSSPEC_S3_ANON=true for public data). Where a server cannot list, name the "
                f"shards, as .../train-{{0000..0099}}.tar, or put an {INDEX_NAME} beside them"
            ) from error
        return sorted(files, key=lambda file: file.name)

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """Return bytes start to end of a file, requested again if the connection breaks.

        Raises RemoteFailed; DataError for permanent failures, such as 403 and 404.
        """

        def request() -> bytes:
            content: bytes = self.filesystem.cat_file(file.path, start=start, end=end)
            if len(content) != end - start:
                raise ConnectionError(f"{len(content):,} bytes came instead of {end - start:,}")
            return content

        try:
            return call_with_retries(request, f"{self.url}: {file.name}") if end > start else b""
        except (DataError, RemoteFailed):
            raise
        except Exception as error:
            raise DataError(
                f"{self.url}: {file.name} cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _list(self) -> tuple[dict[str, _Facts], dict[str, ListedShard]]:
        """Return the files that the URL stands for with facts, and what an index lists, by path.

        A listing contains facts, but not always; a file that an index lists has to be there.
        """
        self.filesystem.invalidate_cache()
        if "{" in self.root:
            return {path: {} for path in expand_braces(self.root)}, {}
        if any(sign in self.root for sign in "*["):
            return self._list_matching(), {}
        if self.root.endswith((".tar", ".parquet")):
            return {self.root: {}}, {}
        index = self._read_index()
        listing: dict[str, _Facts] = {}
        if not (index and _is_http(self.root)):
            with suppress(FileNotFoundError, PermissionError):  # what it lists may be readable
                listing = self._list_below(self.root, _DEPTH)
        return {path: {} for path in index} | listing, index

    def _list_matching(self) -> dict[str, _Facts]:
        """Return the files that match the URL as a pattern."""
        from fsspec.utils import glob_translate

        pattern = re.compile(glob_translate(self.root))
        folder = re.split(r"[*\[]", self.root)[0].rpartition("/")[0]
        depth = _MAX_DEPTH if "**" in self.root else self.root.count("/") - folder.count("/")
        listing = self._list_below(folder, depth)
        return {path: facts for path, facts in listing.items() if pattern.match(path)}

    def _list_below(self, folder: str, depth: int) -> dict[str, _Facts]:
        """Return the files in a folder, `depth` levels deep.

        fsspec's find and glob skip a folder whose listing fails, even for a temporary reason.
        """
        files: dict[str, _Facts] = {}
        folders = [(folder, depth)]
        for parent, levels in folders:  # which grows meanwhile
            start = f"{parent.rstrip('/')}/" if parent else ""
            list_parent = partial(self.filesystem.ls, parent, detail=True)
            for facts in call_with_retries(list_parent, self.url):
                path = str(facts["name"])
                if not path.startswith(start) or path == start:  # a web page also links elsewhere
                    continue
                if facts.get("type") != "directory":
                    files[path] = facts
                elif levels > 1:
                    folders.append((path, levels - 1))
            if len(files) + len(folders) > REMOTE_FILES:
                raise DataError(f"{self.url} holds too many files; name the shards' own folder")
        return files

    def _read_index(self) -> dict[str, ListedShard]:
        """Return what an index file beside the shards lists, by path; empty without one."""
        root = self.root.rstrip("/")
        path = f"{root}/{INDEX_NAME}"
        fetch = partial(self.filesystem.cat_file, path, start=0, end=SHARD_INDEX_BYTES + 1)
        try:
            content = call_with_retries(fetch, self.url)
        except (FileNotFoundError, PermissionError):  # S3 forbids what does not exist, too
            return {}
        return {f"{root}/{name}": entry for name, entry in parse_index(content, path).items()}

    def _complete(self, listing: dict[str, _Facts]) -> dict[str, _Facts]:
        """Request the size and version of files whose listing lacks them."""
        missing = [
            path for path, facts in listing.items() if not (facts.get("size") and _version(facts))
        ]

        def request(path: str) -> _Facts:
            try:
                facts: _Facts = call_with_retries(lambda: self.filesystem.info(path), path)
            except (FileNotFoundError, PermissionError) as error:
                raise DataError(
                    f"{path} cannot be read: {error or type(error).__name__}"
                ) from error
            if facts.get("size") is None:
                raise DataError(f"the server does not report the size of {path}")
            return facts

        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            return listing | dict(zip(missing, pool.map(request, missing), strict=True))

    def _common_root(self, paths: Iterable[str]) -> str:
        root = self.root.rstrip("/")
        if all(path.startswith(f"{root}/") for path in paths):
            return root
        return root.partition("{")[0].partition("*")[0].rpartition("/")[0]


def _options(url: str) -> dict[str, Any]:
    """Return options for opening a URL: time limits, merged into fsspec's configuration."""
    if _is_s3(url):
        # Five botocore tries, for each of five s3fs tries, for each of ours, would wait for a
        # silent server for most of an hour.
        once = {"retries": {"total_max_attempts": 1}, "read_timeout": _SILENCE_SECONDS}
        return {"config_kwargs": {**_configured("s3", "config_kwargs"), **once}}
    return {}


def _configured(protocol: str, name: str) -> dict[str, Any]:
    """Return an option from fsspec's configuration, which an argument would replace entirely."""
    from fsspec.config import conf

    option: dict[str, Any] = conf.get(protocol, {}).get(name, {})
    return option


def _is_s3(url: str) -> bool:
    return url.startswith(("s3://", "s3a://"))


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _describe(path: str, facts: _Facts, root: str, listed: ListedShard) -> RemoteFile:
    name = path.removeprefix(root).lstrip("/")
    return RemoteFile(name, path, int(facts["size"]), _version(facts), listed)


def _version(facts: _Facts) -> str:
    """Return an ETag, a checksum or a time, which change with the content; empty if none."""
    return next((str(facts[key]) for key in (*_VERSION_KEYS, "created") if facts.get(key)), "")
