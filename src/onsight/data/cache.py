"""Where decoded images are kept between runs."""

import os
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.files import user_path

NOWHERE = "none"


def find_cache_folder(asked: str = "") -> Path | None:
    """The requested folder, else $ONSIGHT_CACHE, else the user's own; None for "none".

    Raises ConfigError where the user has no home folder.
    """
    if asked == NOWHERE:
        return None
    chosen = asked or os.environ.get("ONSIGHT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return user_path(chosen) if chosen else user_path(base) / "onsight"
    except OutputError as error:
        raise ConfigError(f"{error}; set --cache-folder, or ONSIGHT_CACHE") from error
