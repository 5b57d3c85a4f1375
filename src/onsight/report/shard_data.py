"""Implement `onsight shard`: find DATA, write its shards, report the files written."""

import json
from pathlib import Path

from onsight.data.cache import find_cache_folder
from onsight.data.index import UNSPLIT, Problem
from onsight.data.shards.write import Target, WrittenShards, write_shards
from onsight.data.sources.find import ReadOptions, find_source
from onsight.data.sources.source import Source
from onsight.errors import ConfigError, DataError, OutputError
from onsight.files import check_output, refuse_inside_data, refuse_no_folder, refuse_replacing
from onsight.report.console import Reporter
from onsight.report.run_files import write_problems
from onsight.text import data_size, plural

_MIN_MEGABYTES, _MAX_MEGABYTES = 0.1, 2000.0  # a shard is put together in memory
_PROBLEMS_SHOWN = 3


def shard_data(
    data: str,
    reading: ReadOptions,
    out: str,
    shard_megabytes: float,
    problems_file: Path | None,
    as_json: bool,
) -> None:
    """Write DATA as shards to a folder or a URL. Raises UserError, DiskError, RemoteFailed."""
    if not _MIN_MEGABYTES <= shard_megabytes <= _MAX_MEGABYTES:  # NaN is not either
        raise ConfigError(
            f"--shard-megabytes must be from {_MIN_MEGABYTES} to {_MAX_MEGABYTES:,.0f}"
        )
    target = Target.open(out)
    if target.remote is None:
        refuse_no_folder(target.folder)
        refuse_inside_data(target.folder, data, "../shards")
    if problems_file:
        if target.remote is None and problems_file.resolve().parent == target.folder.resolve():
            raise OutputError(f"--problems {problems_file} would be in the folder of the shards")
        check_output("--problems", problems_file, data=data)
    reporter = Reporter()
    source = find_source(data, reading, find_cache_folder())
    if problems_file:
        refuse_replacing("--problems", problems_file, data=source.files())
    reporter.say(f"data: {source.description}")
    _refuse_unsplit_groups(source)
    with reporter.bar("shard", len(source.index)) as bar:
        written = write_shards(source, target, int(shard_megabytes * 1e6), bar.advance)
    problems = [*source.problems, *written.problems]
    if problems_file:
        write_problems(problems_file, problems)
    _report_written(reporter, target, written, problems)
    if as_json:
        facts = {"out": target.name, "images": written.images, "problems": len(problems)}
        print(json.dumps({**facts, "shards": len(written.shards), "kept": written.kept}))
    else:
        print(target.name)


def _refuse_unsplit_groups(source: Source) -> None:
    """Raise DataError if training on the shards would split groups, or times, at random."""
    lost = "groups" if source.groups else "times" if source.times is not None else ""
    if lost and (source.index.splits == UNSPLIT).any():
        raise DataError(
            f"the images have {lost}, which shards do not keep, so a split of the shards could not "
            "respect them: assign each image to train, validation or test, as in a column split"
        )


def _report_written(
    reporter: Reporter, target: Target, written: WrittenShards, problems: list[Problem]
) -> None:
    size = sum(int(shard["filesize"]) for shard in written.shards)
    existing = f", {written.kept:,} of which already existed" if written.kept else ""
    reporter.say(
        f"{plural(written.images, 'image')} in {plural(len(written.shards), 'shard')}, "
        f"{data_size(size)}{existing}"
    )
    for problem in problems[:_PROBLEMS_SHOWN]:
        reporter.warn(f"not used: {problem.path}: {problem.reason}")
    if len(problems) > _PROBLEMS_SHOWN:
        more = len(problems) - _PROBLEMS_SHOWN
        reporter.warn(f"and {more:,} more (--problems FILE.csv lists them)")
    reporter.say(f"train from them: onsight train {target.name}")
