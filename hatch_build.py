"""Adds the other two packages of this repository to the dependencies of onsight.

A release depends on the published packages of its own version. Everything else that is built from
the repository, such as `pip install git+...`, depends on the packages in the same checkout, which
may not be published.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGES = ("onsight-explain", "onsight-lint")


class Dependencies(MetadataHookInterface):
    """Fills in `dependencies` from the hook's own table in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the packages to the dependencies that pyproject.toml lists."""
        folder = Path(self.root) / "packages"
        is_release = "ONSIGHT_RELEASE" in os.environ or not folder.is_dir()
        metadata["dependencies"] = sorted(
            [
                *self.config["dependencies"],
                *(
                    f"{name}=={metadata['version']}"
                    if is_release
                    else f"{name} @ {(folder / name).as_uri()}"
                    for name in PACKAGES
                ),
            ]
        )
