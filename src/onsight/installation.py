"""Report Onsight's version, the distribution it came in, and installed optional packages."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from onsight.errors import ConfigError

_FULL, _RUN_ONLY = "onsight", "onsight-run"  # both distributions contain the package onsight


def distribution() -> str:
    """Return the installed distribution, whose extras an error message can name."""
    return _RUN_ONLY if _version_of(_FULL) is None and _version_of(_RUN_ONLY) else _FULL


def onsight_version() -> str:
    """Return the installed version, or "unknown" for a bare copy of the files."""
    return _version_of(_FULL) or _version_of(_RUN_ONLY) or "unknown"


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it (only its parents)."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a submodule is missing
        return False


def require(module: str, extra: str, purpose: str, instead: str = "") -> None:
    """Raise ConfigError, with the command that installs it, if an optional module is missing.

    purpose begins the message, as in "writing a.parquet"; instead ends it with an alternative, as
    in ", or choose --csv".
    """
    if not is_installed(module):
        package = module.partition(".")[0]
        raise ConfigError(
            f"{purpose} needs {package}: pip install '{distribution()}[{extra}]'{instead}"
        )


def _version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
