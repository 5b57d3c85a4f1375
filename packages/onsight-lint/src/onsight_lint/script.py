"""A script with the modules in its folder that it imports, and the meaning of their names."""

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from onsight_lint.errors import ReadError
from onsight_lint.files import decode, read_content
from onsight_lint.scopes import Binding, Scopes, module_name
from onsight_lint.source import SourceFile, drop_unreachable, parse
from onsight_lint.syntax import DEFINITIONS, FUNCTIONS, LOOPS, Function, Loop

Definition = Function | ast.ClassDef

_MAX_FILES = 100  # a script beside a whole library does not need all of it
_MAX_CHARACTERS = 400_000  # about 10,000 lines
_CACHED_FILES = 200  # bounds the memory when a whole library is read

_PUBLIC_PATHS = (  # modules where torch defines something, and where it is usually imported from
    (re.compile(r"^torch\.nn\.modules\.\w+\."), "torch.nn."),
    (re.compile(r"^torch\.nn\.parallel\.(?:data_parallel|distributed)\."), "torch.nn.parallel."),
    (re.compile(r"^torch\.utils\.data\.(?:dataloader|dataset)\."), "torch.utils.data."),
    (re.compile(r"^torch\.autograd\.grad_mode\."), "torch."),
    (re.compile(r"^torch\.autograd\.(?=no_grad|set_grad_enabled|inference_mode)"), "torch."),
)


class Library:
    """Reads and parses files, each only once however many scripts import it."""

    def __init__(self, texts: Mapping[Path, str] | None = None) -> None:
        self.texts = texts or {}  # used instead of the content of these files
        self.text = lru_cache(_CACHED_FILES)(self._text)
        self.scopes = lru_cache(_CACHED_FILES)(self._scopes)

    def _text(self, path: Path) -> str:
        """The text of a file. Raises ReadError if it cannot be read."""
        if path in self.texts:
            return self.texts[path]
        return decode(path, read_content(path))

    def _scopes(self, path: Path, module: str, is_imported: bool) -> Scopes:
        """The bindings in a file's reachable code; module: its import name. Raises ReadError."""
        text = self.text(path)
        tree = parse(path, text)
        drop_unreachable(tree, is_imported)
        return Scopes(SourceFile(path, text, tree, module))


class Script:
    """A script, the modules that it imports from its folder, and what their names refer to."""

    def __init__(self, path: Path, library: Library | None = None, alone: bool = False) -> None:
        """Raises ReadError if the script cannot be read. alone: do not read the modules."""
        self.path, self._library = path, library or Library()
        self.sources: list[SourceFile] = []
        self.scopes: dict[SourceFile, Scopes] = {}
        self._modules: dict[str, SourceFile] = {}
        self._homes: dict[ast.AST, SourceFile] = {}
        self._characters = 0
        self._add(path, path.stem)
        for source in self.sources if not alone else []:  # grows while it is iterated
            for name in _imported_modules(source):
                if len(self.sources) < _MAX_FILES and self._characters < _MAX_CHARACTERS:
                    self._add_module(name)

    def source(self, node: ast.AST) -> SourceFile:
        """Return the file that a node belongs to."""
        return self._homes[node]

    def scope(self, node: ast.AST) -> Scopes:
        """Return the bindings of the file that a node belongs to."""
        return self.scopes[self._homes[node]]

    def parent(self, node: ast.AST) -> ast.AST:
        """Return the node that contains a node."""
        return self._homes[node].parents[node]

    def code(self, node: ast.AST) -> str:
        """Return the source code of a node."""
        return self._homes[node].code(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is, or is part of."""
        return self._homes[node].statement(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, from the innermost outwards."""
        return self._homes[node].ancestors(node)

    def loops_around(self, node: ast.AST) -> Iterator[Loop]:
        """Yield the loops around a node in the same function, from the innermost outwards."""
        for parent in self.ancestors(node):
            if isinstance(parent, FUNCTIONS):
                return
            if isinstance(parent, LOOPS):
                yield parent

    def nodes(self, *types: type[ast.AST]) -> Iterator[Any]:
        """Yield the nodes of some types in every file."""
        for source in self.sources:
            yield from source.all(*types)

    def function(self, node: ast.AST) -> ast.AST:
        """Return the function, lambda or module in which a node runs."""
        return self.scope(node).function(node)

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose method contains a node."""
        return self.source(node).enclosing_class(node)

    def assigned_value(self, name: ast.AST) -> ast.expr | None:
        """Return the value of a name, if a single assignment reaches it and unpacks nothing."""
        bindings = self.scope(name).reaching(name) if isinstance(name, ast.Name) else []
        return bindings[0].value if len(bindings) == 1 and not bindings[0].steps else None

    def path_of(self, expression: ast.AST) -> str:
        """Return the full name of an imported or built-in thing: `torch.nn.functional.softmax`.

        It is empty for variables and anything else.
        """
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        base = self._base_path(expression)
        return _public_path(".".join([base, *reversed(parts)])) if base else ""

    def definition(self, expression: ast.AST) -> Definition | None:
        """Return the function or class that an expression names, if the script defines it."""
        if isinstance(expression, ast.Name):
            defined = self.scope(expression).last(expression, "definition")
            if defined is not None and isinstance(defined.node, DEFINITIONS):
                return defined.node
        nodes = [binding.node for binding in self.exported(self.path_of(expression))]
        return next((node for node in reversed(nodes) if isinstance(node, DEFINITIONS)), None)

    def exported(self, path: str, depth: int = 8) -> list[Binding]:
        """Return the bindings of a name in a module of the script, by its full path."""
        module, _, name = path.rpartition(".")
        source = self._modules.get(module)
        if source is None or not name or not depth:
            return []
        bindings: list[Binding] = []
        scopes = self.scopes[source]
        for binding in scopes.tables[source.tree].get(name, []):
            if binding.kind == "import":
                bindings.extend(self.exported(binding.path, depth - 1))
            else:
                bindings.append(binding)
        if not bindings:
            for star in scopes.stars:
                bindings.extend(self.exported(f"{star}.{name}", depth - 1))
        return bindings

    def _base_path(self, name: ast.Name) -> str:
        scopes = self.scope(name)
        bindings = scopes.lookup(name)
        imported = scopes.last(name, "import")
        if imported is not None:
            return imported.path
        if not bindings:
            local = [star for star in scopes.stars if self.exported(f"{star}.{name.id}")]
            torch_stars = [star for star in scopes.stars if star.startswith("torch")]
            if local or (torch_stars and name.id[0].isupper()):
                return f"{(local or torch_stars)[0]}.{name.id}"
            return name.id
        alias = bindings[0].value if len(bindings) == 1 and not bindings[0].steps else None
        if isinstance(alias, ast.Attribute):  # `nn = torch.nn`
            return self.path_of(alias)
        return ""

    def _add(self, path: Path, module: str) -> None:
        scopes = self._library.scopes(path, module, bool(self.sources))
        source = scopes.source
        self.sources.append(source)
        self.scopes[source] = scopes
        self._characters += len(source.text)
        self._modules[module.removesuffix(".__init__")] = source
        self._homes |= dict.fromkeys(source.nodes, source)

    def _add_module(self, name: str) -> None:
        """Add the files of a module and its packages, if they are in the script's folder."""
        parts = name.split(".")
        for n in range(1, len(parts) + 1):
            module = ".".join(parts[:n])
            if module in self._modules:
                continue
            plain = self.path.parent.joinpath(*parts[:n])
            with contextlib.suppress(ReadError):  # a module that cannot be read is ignored
                if (file := plain.with_name(plain.name + ".py")).is_file():
                    self._add(file, module)
                elif (file := plain / "__init__.py").is_file():
                    self._add(file, f"{module}.__init__")


def _imported_modules(source: SourceFile) -> Iterator[str]:
    """The names that may be modules in the imports of a file."""
    for node in source.all(ast.Import):
        yield from (alias.name for alias in node.names)
    for node in source.all(ast.ImportFrom):
        base = module_name(node, source.module)
        if base:
            yield base
        yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _public_path(path: str) -> str:
    for pattern, public in _PUBLIC_PATHS:
        path = pattern.sub(public, path)
    return path
