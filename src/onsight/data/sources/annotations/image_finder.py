"""Where the images are that annotations name: tools write the path of another machine."""

import os
from collections import defaultdict
from pathlib import Path

from onsight.data.sources.class_folders import is_hidden
from onsight.errors import ImageError


class ImageFinder:
    """The files below a folder, by their names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, list[str]] = defaultdict(list)
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            for name in names:
                self._paths[name].append(os.path.relpath(os.path.join(folder, name), root))

    def find(self, name: str, near: str = "") -> str:
        """The path, relative to the root, of the file that fits a name best.

        Of several files of that name, the one whose folders agree with the name's, or the one in
        the folder `near`. Raises ImageError if there is none, or no best one.
        """
        wanted = name.replace("\\", "/").split("/")
        paths = self._paths.get(wanted[-1], [])
        if not paths:
            raise ImageError(f"annotated, but there is no such file below {self.root}")
        best = max(_agreeing(path, wanted) for path in paths)
        paths = [path for path in paths if _agreeing(path, wanted) == best]
        beside = [path for path in paths if os.path.dirname(path) == near]
        found = beside or paths
        if len(found) > 1:
            raise ImageError(f"annotated, but several files fit: {found[0]}, {found[1]}")
        return found[0]


def _agreeing(path: str, wanted: list[str]) -> int:
    """The number of the last parts of a path that are the same as of another."""
    pairs = zip(reversed(path.split(os.sep)), reversed(wanted), strict=False)
    same = [one == other for one, other in pairs]
    return same.index(False) if False in same else len(same)
