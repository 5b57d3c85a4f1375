"""The files that were read, each parsed once however many scripts import it."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from onsight_lint.reachable import keep_reachable
from onsight_lint.scopes import Scopes
from onsight_lint.source import Source, decoded, parsed, read_content

_KEPT = 200  # parsed files; more would fill the memory, where a whole library is read


class Library:
    """Reads files; texts: what is read in place of the files of these names."""

    def __init__(self, texts: Mapping[Path, str] | None = None) -> None:
        self.texts = texts or {}
        self.text = lru_cache(_KEPT)(self._text)
        self.scopes = lru_cache(_KEPT)(self._scopes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Library, (self.texts,)

    def _text(self, path: Path) -> str:
        """The text of a file. Raises ReadError if it cannot be read."""
        if path in self.texts:
            return self.texts[path]
        return decoded(path, read_content(path))

    def _scopes(self, path: Path, module: str, imported: bool) -> Scopes:
        """What can run of a file, and its bindings; module: its name in imports.

        imported: whether it is not the script itself. Raises ReadError.
        """
        text = self.text(path)
        tree = parsed(path, text)
        keep_reachable(tree, imported)
        return Scopes(Source(path, text, tree, module))
