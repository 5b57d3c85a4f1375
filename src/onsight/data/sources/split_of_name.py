"""The split that a file's name tells."""

import re

from onsight.data.index import SPLIT_WORDS, UNSPLIT

_BETWEEN_WORDS = re.compile(r"[^a-z]+")


def split_of_name(name: str) -> int:
    """The split that is a word of a name, as in train-00000-of-00002.parquet; else UNSPLIT."""
    words = _BETWEEN_WORDS.split(name.lower())
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), UNSPLIT)
