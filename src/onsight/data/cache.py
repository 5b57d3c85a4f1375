"""Where decoded pictures are kept between runs."""

import os
from pathlib import Path


def cache_folder(asked: str = "", keep: bool = True) -> Path | None:
    """The folder asked for, else $ONSIGHT_CACHE, else the user's; None if nothing is kept."""
    if not keep:
        return None
    if asked:
        return Path(asked).expanduser()
    own = os.environ.get("ONSIGHT_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "onsight"
