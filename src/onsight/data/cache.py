"""Where decoded pictures are kept between runs."""

import os
from pathlib import Path

NOWHERE = "none"


def find_cache_folder(asked: str = "") -> Path | None:
    """The requested folder, else $ONSIGHT_CACHE, else the user's own; None for "none"."""
    if asked == NOWHERE:
        return None
    if asked:
        return Path(asked).expanduser()
    own = os.environ.get("ONSIGHT_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "onsight"
