"""Opening DATA for a check: decoded once, as training would, with the headers of its files."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onsight.audit.headers import HeaderReader, with_headers
from onsight.audit.subject import Subject
from onsight.config import Config
from onsight.data.dataset import USUAL_SIZE, choose_size, make_format
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import Job, Progress
from onsight.data.sources.source import Source
from onsight.errors import ImageError
from onsight.report.console import Reporter
from onsight_explain.cores import usable_cores

_SIZE = (128, 128)  # pixels at which larger images are looked at


def open_subject(source: Source, config: Config, kept: Path | None, reporter: Reporter) -> Subject:
    """Decode all images, or reopen them, and read the headers of their files.

    Raises DataError if none can be used, DiskError.
    """
    size = choose_size(source, config.size, None).value
    if size == USUAL_SIZE and not config.size:
        size = _SIZE
    watched, reader = with_headers(source)
    job = Job(watched, make_format(config, size, size), threads=usable_cores())
    with reporter.bar("decode", len(source.index)) as bar:
        pack = open_pack(replace(job, progress=bar.advance), kept)
        if pack.was_cached:
            _read_headers(reader, pack, bar.advance)
    return Subject(source, pack, reader.headers)


def _read_headers(reader: HeaderReader, pack: Pack, progress: Progress) -> None:
    def read(row: int) -> None:
        with suppress(ImageError):
            reader(row)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(read, pack.sources.tolist()):
            progress(1)
