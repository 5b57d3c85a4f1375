"""WebDataset shards in a folder: tar files whose members are pictures and, beside each, its label.

Source: https://github.com/webdataset/webdataset (members of one sample share their name up to the
first dot: 000.jpg, 000.cls).
"""

import json
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from onsight.data.index import SPLIT_WORDS, UNSPLIT, Index, Problem, Row
from onsight.data.sources.archive_tar import BrokenTar, TarReader, open_tar
from onsight.data.sources.source import Source, fingerprint, found_line, stat_facts
from onsight.errors import DataError, PictureError
from onsight.limits import SHARD_LABEL_BYTES
from onsight.words import plural

PICTURES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
LABELS = ("cls", "txt", "json")


class _Sample(NamedTuple):
    """Where a picture lies: which shard, which member."""

    shard: int
    member: int


def holds_shards(folder: Path) -> bool:
    """Whether a folder has tar files of pictures with labels beside them, judged by the first."""
    for path in _shards(folder)[:1]:
        try:
            with open(path, "rb") as file:
                members, _ = open_tar(file)
        except (OSError, BrokenTar, DataError):
            return False
        endings = {_parts(name)[1] for name in members.paths}
        return bool(endings & set(PICTURES)) and bool(endings & set(LABELS))
    return False


def read_shards(folder: Path) -> Source:
    """The samples of all shards in a folder; a broken shard, or a sample without label, is listed.

    The name of a shard, or of the folder that it is in, says its split. Raises DataError if there
    is no usable sample.
    """
    root = Path(os.path.realpath(folder))
    paths = _shards(root)
    rows: list[Row] = []
    samples: list[_Sample] = []
    problems: list[Problem] = []
    readers: list[TarReader] = []
    files: list[IO[bytes]] = []
    with ExitStack() as cleanup:
        for path in paths:
            name = str(path.relative_to(root))
            with ExitStack() as opened:
                try:
                    file = opened.enter_context(open(path, "rb"))
                    members, reader = open_tar(file)
                except (OSError, BrokenTar) as error:
                    problems.append(Problem(name, "scan", f"a broken shard: {error}"))
                    continue
                cleanup.enter_context(opened.pop_all())
            problems += [Problem(f"{name}/{one.path}", *one[1:]) for one in members.problems]
            _take(name, members.paths, reader, len(readers), rows, samples, problems)
            readers.append(reader)
            files.append(file)
        if not rows:
            raise DataError(f"{root} holds no shard with pictures and labels")
        read = _ShardReader(files, readers, samples)
        cleanup.pop_all()
    index = Index.of(rows)
    size = f"{plural(len(rows), 'picture')} in {plural(len(readers), 'shard')}"
    return Source(
        kind="webdataset",
        root=root,
        index=index,
        read=read,
        fingerprint=fingerprint(["webdataset", *(stat_facts(path) for path in paths)]),
        found=found_line("WebDataset shards", index, size),
        problems=problems,
    )


def _shards(folder: Path) -> list[Path]:
    """The tar files of a folder and of the folders in it, by name."""
    return sorted([*folder.glob("*.tar"), *folder.glob("*/*.tar")])


def _take(
    shard: str,
    paths: Sequence[str],
    reader: TarReader,
    number: int,
    rows: list[Row],
    samples: list[_Sample],
    problems: list[Problem],
) -> None:
    """Add the samples of a shard."""
    labels: dict[str, int] = {}
    pictures: list[tuple[str, int]] = []
    for member, path in enumerate(paths):
        key, ending = _parts(path)
        if ending in PICTURES:
            pictures.append((key, member))
        elif ending in LABELS:
            labels.setdefault(key, member)
    split = _split_of(shard)
    for key, member in pictures:
        label = _label(reader, labels[key], paths[labels[key]]) if key in labels else ""
        if not label:
            reason = f"no label beside it ({', '.join(LABELS)})"
            problems.append(Problem(f"{shard}/{paths[member]}", "scan", reason))
            continue
        rows.append(Row(f"{shard}/{paths[member]}", label, split))
        samples.append(_Sample(number, member))


def _parts(path: str) -> tuple[str, str]:
    """A member's key and the ending of its name, in small letters."""
    folder, _, name = path.rpartition("/")
    key, _, ending = name.partition(".")
    return f"{folder}/{key}", ending.lower()


def _label(reader: TarReader, member: int, path: str) -> str:
    """The label in a member: its text, or what a JSON object names; empty if there is none."""
    if reader.sizes[member] > SHARD_LABEL_BYTES:
        return ""
    try:
        text = reader(member).decode("utf-8").strip()
        if not path.lower().endswith(".json"):
            return text
        facts = json.loads(text)
        names = (name for name in ("label", "class", "cls") if name in facts)
        return str(facts[next(names)])
    except (PictureError, ValueError, TypeError, StopIteration, RecursionError):
        return ""


def _split_of(shard: str) -> int:
    """The split that a shard's path names, as in train-0001.tar or val/0001.tar."""
    words = shard.lower().replace("/", "-").replace("_", "-").replace(".", "-").split("-")
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), UNSPLIT)


class _ShardReader:
    """Reads row i; the shards' files are closed once the reader is garbage."""

    def __init__(
        self, files: list[IO[bytes]], readers: list[TarReader], samples: list[_Sample]
    ) -> None:
        self._readers, self._samples = readers, samples
        weakref.finalize(self, _close, files)

    def __call__(self, row: int) -> bytes:
        """The encoded bytes of a picture. Raises PictureError."""
        sample = self._samples[row]
        return self._readers[sample.shard](sample.member)


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        file.close()
