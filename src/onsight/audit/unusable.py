"""Files that cannot be used, with the reason."""

from collections.abc import Iterator

from onsight.audit.finding import Finding, Place
from onsight.audit.subject import Subject


def unusable(subject: Subject) -> Iterator[Finding]:
    """A finding for each file that is refused, when DATA is listed or when it is decoded."""
    for problem in subject.problems:
        yield Finding(
            "unusable",
            problem.reason,
            "left out, and listed in problems.csv",
            (Place(problem.path),),
            1.0,
        )
