"""Sets of words, written as one string."""


def word_set(text: str) -> frozenset[str]:
    """The words of a string as a set."""
    return frozenset(text.split())
