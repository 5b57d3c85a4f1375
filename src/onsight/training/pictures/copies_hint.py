"""One line on copies among the pictures, for which `onsight check` has a page."""

from onsight.data.dataset import Dataset
from onsight.data.duplicates.near import glance
from onsight.data.sources.source import is_memory_name
from onsight.data.split import different
from onsight.words import plural

_MOST = 10_000  # pictures that are compared, which takes seconds


def copies_hint(dataset: Dataset, data: str) -> str:
    """What a glance shows and the command that shows more; empty if there is nothing to show."""
    pack = dataset.pack
    _, first = different(pack.digests)
    identical = len(pack) - len(first)
    near = 0 if dataset.units.knows_copies else len(glance(pack, _MOST))
    parts = [plural(identical, "identical copy", "identical copies")] if identical else []
    if near:
        among = f" among {_MOST:,} pictures" if len(first) > _MOST else ""
        parts.append(plural(near, "near-duplicate") + among)
    if not parts:
        return ""
    command = "onsight.check" if is_memory_name(data) else f"onsight check {data}"
    keeps = ", and the next training keeps near-duplicates on one side of its split" if near else ""
    return f"{' and '.join(parts)}: `{command}` shows them{keeps}"
