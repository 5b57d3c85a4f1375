"""The command `onsight report`."""

from pathlib import Path


def report(run: Path, /) -> None:
    """Write report.html of a run again, from the files in its folder.

    Parameters
    ----------
    run
        A run folder.
    """
    from onsight.report.html import write_report

    print(write_report(run))
