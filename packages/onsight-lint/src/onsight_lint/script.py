"""A script with the modules of its own folder that it imports, and what their names mean."""

import ast
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onsight_lint.errors import ReadError
from onsight_lint.library import Library
from onsight_lint.scopes import Binding, Scopes
from onsight_lint.source import (
    FUNCTIONS,
    Function,
    Source,
)

Definition = Function | ast.ClassDef

_MOST_FILES = 100  # a script next to a whole library does not need all of it
_MOST_CHARACTERS = 400_000  # about 10,000 lines

_INNER = (  # the module where torch defines something, and the public one
    (re.compile(r"^torch\.nn\.modules\.\w+\."), "torch.nn."),
    (re.compile(r"^torch\.nn\.parallel\.(?:data_parallel|distributed)\."), "torch.nn.parallel."),
    (re.compile(r"^torch\.utils\.data\.(?:dataloader|dataset)\."), "torch.utils.data."),
    (re.compile(r"^torch\.autograd\.grad_mode\."), "torch."),
    (re.compile(r"^torch\.autograd\.(?=no_grad|set_grad_enabled|inference_mode)"), "torch."),
)


class Script:
    """The sources, the script itself first, and the meaning of the names in them.

    alone: whether the modules that it imports are left out.
    """

    def __init__(self, path: Path, library: Library | None = None, alone: bool = False) -> None:
        self.path, self._library = path, library or Library()
        self.sources: list[Source] = []
        self.scopes: dict[Source, Scopes] = {}
        self._modules: dict[str, Source] = {}
        self._home: dict[ast.AST, Source] = {}
        self._characters = 0
        self._add(path, path.stem)
        for source in self.sources if not alone else []:  # grows while it is iterated
            for name in _imported(source):
                if len(self.sources) < _MOST_FILES and self._characters < _MOST_CHARACTERS:
                    self._find_module(name)

    def source(self, node: ast.AST) -> Source:
        """The file that a node belongs to."""
        return self._home[node]

    def scope(self, node: ast.AST) -> Scopes:
        """The bindings of the file that a node belongs to."""
        return self.scopes[self._home[node]]

    def parent(self, node: ast.AST) -> ast.AST:
        """The node that contains a node."""
        return self._home[node].parents[node]

    def code(self, node: ast.AST) -> str:
        """The source code of a node."""
        return self._home[node].code(node)

    def nodes(self, *types: type[ast.AST]) -> Iterator[Any]:
        """The nodes of some types in every file."""
        for source in self.sources:
            yield from source.all(*types)

    def function(self, node: ast.AST) -> ast.AST:
        """The function, lambda or module in which a node runs."""
        return self.scope(node).function(node)

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method contains a node."""
        return self.source(node).enclosing_class(node)

    def path_of(self, expression: ast.AST) -> str:
        """The full name of an expression: `torch.nn.functional.softmax`; empty for variables."""
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        base = self._base(expression)
        return _usual(".".join([base, *reversed(parts)])) if base else ""

    def definition(self, expression: ast.AST) -> Definition | None:
        """The function or class of these files that an expression names directly."""
        if isinstance(expression, ast.Name):
            for binding in reversed(self.scope(expression).lookup(expression)):
                if binding.how == "definition":
                    return _definition(binding.node)
        path = self.path_of(expression)
        for binding in reversed(self.exported(path) if path else []):
            if binding.how == "definition":
                return _definition(binding.node)
        return None

    def exported(self, path: str, depth: int = 8) -> list[Binding]:
        """The bindings of a name in a module of these files, by its full path."""
        module, _, name = path.rpartition(".")
        source = self._modules.get(module)
        if source is None or not name or not depth:
            return []
        found: list[Binding] = []
        scopes = self.scopes[source]
        for binding in scopes.tables[source.tree].get(name, []):
            if binding.how == "import":
                found.extend(self.exported(binding.path, depth - 1))
            else:
                found.append(binding)
        if not found:
            for star in scopes.stars:
                found.extend(self.exported(f"{star}.{name}", depth - 1))
        return found

    def _base(self, name: ast.Name) -> str:
        scopes = self.scope(name)
        bindings = scopes.lookup(name)
        imports = [binding.path for binding in bindings if binding.how == "import"]
        if imports:
            return imports[-1]
        if not bindings:
            local = [star for star in scopes.stars if self.exported(f"{star}.{name.id}")]
            foreign = [star for star in scopes.stars if star.startswith("torch")]
            if local or (foreign and name.id[0].isupper()):
                return f"{(local or foreign)[0]}.{name.id}"
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
        self._home |= dict.fromkeys(source.nodes, source)

    def _find_module(self, name: str) -> None:
        """Add the file of a module, if it is in the script's own folder."""
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


def _imported(source: Source) -> Iterator[str]:
    for node in source.all(ast.Import):
        yield from (alias.name for alias in node.names)
    for one in source.all(ast.ImportFrom):
        package = source.module.split(".")[: -one.level] if one.level else []
        base = ".".join([*package, *([one.module] if one.module else [])])
        if base:
            yield base
        yield from (f"{base}.{alias.name}".lstrip(".") for alias in one.names)


def _usual(path: str) -> str:
    for pattern, usual in _INNER:
        path = pattern.sub(usual, path)
    return path


def _definition(node: ast.AST) -> Definition | None:
    return node if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else None
