"""Which Onsight this is: two distributions have the same package."""

from importlib.metadata import PackageNotFoundError, version

_WHOLE, _SMALL = "onsight", "onsight-run"


def installed_as() -> str:
    """The name of the distribution to install extras of."""
    return _SMALL if _version_of(_WHOLE) is None and _version_of(_SMALL) else _WHOLE


def onsight_version() -> str:
    """The version that is installed; "unknown" for a bare copy of the files."""
    return _version_of(_WHOLE) or _version_of(_SMALL) or "unknown"


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
