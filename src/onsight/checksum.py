"""A file's own SHA-256, kept inside the file and computed with its 64 characters zeroed."""

import hashlib

BLANK = "0" * 64


def digest_around(data: bytes | bytearray | memoryview, place: int) -> str:
    """The SHA-256 of data, with zeros instead of the 64 characters at a place."""
    view = memoryview(data)
    found = hashlib.sha256(view[:place])
    found.update(BLANK.encode())
    found.update(view[place + len(BLANK) :])
    return found.hexdigest()
