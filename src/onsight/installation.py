"""Report Onsight's version, the distribution it came in, and installed optional packages."""

import json
import os
import shlex
from importlib import metadata
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import url2pathname

from onsight.errors import ConfigError, OnsightError

_FULL, _RUN_ONLY = "onsight", "onsight-run"  # both distributions contain the package onsight


def distribution() -> str:
    """Return the installed distribution, whose extras an error message can name."""
    return _RUN_ONLY if package_version(_FULL) is None and package_version(_RUN_ONLY) else _FULL


def onsight_version() -> str:
    """Return the installed version, or "unknown" for a bare copy of the files."""
    return package_version(_FULL) or package_version(_RUN_ONLY) or "unknown"


def package_version(package: str) -> str | None:
    """Return an installed package's version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it (only its parents)."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a submodule is missing
        return False


def require(
    module: str,
    extra: str,
    purpose: str,
    instead: str = "",
    error: type[OnsightError] = ConfigError,
) -> None:
    """Raise an error, with the command that installs it, if an optional module is missing.

    Telemetry is switched off, unless the user has decided. The parameters besides the first
    and the last are those of `explain_missing`.
    """
    if not is_installed(module):
        raise error(explain_missing(module.partition(".")[0], extra, purpose, instead))
    if module == "onnxruntime":
        # Version 1.29 and later reports what it runs to Microsoft, unless this is set before it is
        # imported (https://github.com/microsoft/onnxruntime/pull/27379).
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def explain_missing(package: str, extra: str, purpose: str, instead: str = "") -> str:
    """Return the message for a missing package, with the command that installs it.

    purpose begins the message, as in "writing a.parquet"; instead ends it with an alternative, as
    in ", or choose --csv".
    """
    return f"{purpose} needs {package}: {install_command(extra)}{instead}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra of the installed distribution."""
    options, source = _find_source(distribution())
    return f"pip install {shlex.join([*options, f'{source}[{extra}]'])}"


def _find_source(name: str) -> tuple[list[str], str]:
    """Return pip's options and what a distribution was installed from: a folder, or its name."""
    try:
        text = metadata.distribution(name).read_text("direct_url.json")
    except PackageNotFoundError:
        return [], name
    origin = json.loads(text or "{}")
    if "dir_info" not in origin:
        return [], name
    is_editable = origin["dir_info"].get("editable")
    return ["-e"] if is_editable else [], url2pathname(urlsplit(origin["url"]).path)
