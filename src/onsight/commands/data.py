"""The commands about datasets: `onsight check` and `shard`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onsight.commands.options import (
    DATA,
    OUTPUT,
    Device,
    FormatOptions,
    Json,
    ReadingOptions,
)


def check(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    quick: Annotated[
        bool,
        Parameter(
            negative="",
            help="Skip the check for wrong labels, which takes most of the time.",
        ),
    ] = False,
    ignore: Annotated[
        Path | None,
        Parameter(help="CSV file with rows of check.csv to ignore, because they are fine."),
    ] = None,
    image_size: Annotated[
        str,
        Parameter(
            help="Size in pixels to decode images at. auto: the original size if small, otherwise "
            "128. A later `onsight train` with the same --image-size reuses the decoded images."
        ),
    ] = "auto",
    device: Device = "auto",
    out: Annotated[
        Path | None,
        Parameter(group=OUTPUT, help="Folder for check.csv and check.html. Default: checks/NAME."),
    ] = None,
    write_manifest: Annotated[
        Path | None,
        Parameter(
            group=OUTPUT,
            help="Write a new CSV file to train from, without unusable files, duplicates and "
            "images under two labels.",
        ),
    ] = None,
    fail_on: Annotated[
        str,
        Parameter(
            group=OUTPUT,
            help="Exit with code 1 if there are findings of these kinds, separated by commas: "
            "leakage (copies on both sides of a split), unusable, duplicates (all copies), labels, "
            "classes, quality.",
        ),
    ] = "",
    json_: Annotated[Json, Parameter(group=OUTPUT)] = False,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008  # frozen
) -> None:
    """Find problems in a dataset before training: copies, leaks, wrong labels, bad files.

    The results are a page with the images side by side, most serious first, and check.csv with a
    row for each finding. Your files are never modified.
    """
    from onsight.audit.run_check import run_check

    failed = run_check(
        data,
        out=out,
        fail_on=fail_on,
        write_manifest=write_manifest,
        as_json=json_,
        quick=quick,
        ignore=ignore,
        image_size=image_size,
        device=device,
        **vars(reading),
    )
    if failed:
        raise SystemExit(1)


def shard(
    data: Annotated[str, Parameter(help=DATA)],
    *,
    out: Annotated[
        str,
        Parameter(
            group=OUTPUT,
            help="Folder to write: a path, or a URL such as s3://bucket/pets (requires "
            "onsight[remote]).",
        ),
    ],
    shard_megabytes: Annotated[
        float,
        Parameter(
            group=OUTPUT, help="Maximum size of a shard in MB; 100 to 500 suit object stores."
        ),
    ] = 100.0,
    problems: Annotated[
        Path | None,
        Parameter(group=OUTPUT, help="CSV file for the images that are skipped, with the reasons."),
    ] = None,
    json_: Annotated[Json, Parameter(group=OUTPUT)] = False,
    reading: FormatOptions = FormatOptions(),  # noqa: B008  # frozen
) -> None:
    """Write DATA as WebDataset shards: tar files that object stores serve quickly.

    Millions of small files are slow to list, copy and read; a few thousand shards are not. Each
    image keeps its bytes and is stored next to its class (000000012.jpg, 000000012.cls). Shards are
    named after their split (train-000000.tar) and shuffled, so that any few of them are a random
    sample; index.json lists them. Your files are never modified.

    Write them once, then train from them anywhere:

    onsight shard images --out s3://bucket/images

    onsight train s3://bucket/images

    If it is killed, repeat the same command to continue.
    """
    from onsight.data.sources.find import ReadOptions
    from onsight.report.shard_data import shard_data

    read_options = ReadOptions(**vars(reading))
    shard_data(data, read_options, out, shard_megabytes, problems, as_json=json_)
