"""Which name is bound where: the assignments of a file by scope, and which of them a use sees."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from onsight_lint.branches import apart
from onsight_lint.source import (
    COMPREHENSIONS,
    FUNCTIONS,
    Place,
    Source,
    end_place,
    start_place,
)

EACH = "*each"  # the step from an iterable to its elements
ANY = "*any"  # the step to an item whose key is unknown

Step = int | str
How = Literal["value", "parameter", "import", "definition", "augmented", "other"]

_BINDING = (
    ast.Assign,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.For,
    ast.AsyncFor,
    ast.comprehension,
    ast.With,
    ast.AsyncWith,
    ast.AugAssign,
    ast.Import,
    ast.ImportFrom,
    *FUNCTIONS,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.arg,
)
_SCOPES = (ast.Module, *FUNCTIONS, ast.Lambda, ast.ClassDef, *COMPREHENSIONS)


@dataclass(frozen=True, eq=False)
class Binding:
    """A name that is given a meaning.

    value, steps: the expression that it comes from, and how (unpacked, looped over); place: where
    in the text it takes effect; path: what an import names.
    """

    name: str
    how: How
    node: ast.AST
    place: Place
    value: ast.expr | None = None
    steps: tuple[Step, ...] = ()
    path: str = ""


@dataclass(frozen=True, eq=False)
class Member:
    """An assignment to an attribute or item: `receiver.key = value`, `receiver[key] = value`."""

    receiver: ast.expr
    key: str
    node: ast.stmt
    value: ast.expr
    steps: tuple[Step, ...]


class Scopes:
    """The bindings of a file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tables: dict[ast.AST, dict[str, list[Binding]]] = defaultdict(dict)
        self.members: list[Member] = []
        self.stars: list[str] = []
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._homes: dict[tuple[ast.AST, str], tuple[ast.AST, list[Binding]]] = {}
        self._outer: dict[ast.AST, dict[str, ast.AST]] = defaultdict(dict)
        for outer in source.all(ast.Global):
            self._outer[self.scope(outer)] |= dict.fromkeys(outer.names, source.tree)
        for node in source.all(*_BINDING):
            self._read(node)
        for table in self.tables.values():
            for bindings in table.values():
                bindings.sort(key=lambda binding: binding.place)

    def scope(self, node: ast.AST) -> ast.AST:
        """The innermost scope of a node: a function, class, comprehension or module."""
        if node not in self._scopes:
            self._scopes[node] = self._scope(node)
        return self._scopes[node]

    def _scope(self, node: ast.AST) -> ast.AST:
        parents = self.source.parents
        child, parent = node, parents.get(node)
        while parent is not None:
            if isinstance(parent, _SCOPES) and _inside(child, parent):
                return parent
            child, parent = parent, parents.get(parent)
        return self.source.tree

    def function(self, node: ast.AST) -> ast.AST:
        """The function or module in which a node runs."""
        scope = self.scope(node)
        while isinstance(scope, (*COMPREHENSIONS, ast.ClassDef)):
            scope = self.scope(scope)
        return scope

    @cached_property
    def attributes(self) -> dict[tuple[ast.AST, str], list[Member]]:
        """The assignments to attributes of self, by class and name."""
        found: dict[tuple[ast.AST, str], list[Member]] = defaultdict(list)
        for one in self.members:
            if isinstance(one.receiver, ast.Name) and one.receiver.id == "self":
                owner = self.source.enclosing_class(one.node)
                if owner is not None:
                    found[owner, one.key].append(one)
        return found

    def lookup(self, name: ast.Name) -> list[Binding]:
        """All bindings that a name may refer to, in source order."""
        return self._home(name)[1]

    def reaching(self, name: ast.Name) -> list[Binding]:
        """The bindings that a use may see: the last that certainly applies, and any after it."""
        home, bindings = self._home(name)
        found = [one for one in bindings if one.how != "augmented"]
        if isinstance(home, (*COMPREHENSIONS, ast.ClassDef)):
            home = self.function(home)
        if home is not self.function(name):
            return found
        place = start_place(name)
        before = [one for one in found if one.place <= place and not self._apart(one, name)]
        seen: list[Binding] = []
        for binding in reversed(before):
            seen.append(binding)
            if self.certain(binding.node, name):
                return seen
        return seen or found

    def _home(self, name: ast.Name) -> tuple[ast.AST, list[Binding]]:
        """The scope that a name belongs to, and its bindings there."""
        key = self.scope(name), name.id
        if key not in self._homes:
            self._homes[key] = self._find_home(*key)
        return self._homes[key]

    def _find_home(self, start: ast.AST, name: str) -> tuple[ast.AST, list[Binding]]:
        scope = start
        while True:
            home = self._outer[scope].get(name, scope)
            found = self.tables[home].get(name)
            if found and (scope is start or not isinstance(scope, ast.ClassDef)):
                return home, found
            if scope is self.source.tree:
                return scope, []
            scope = self.scope(scope)

    def certain(self, node: ast.AST, use: ast.AST) -> bool:
        """Whether a statement has certainly run when a later use is reached."""
        around = {use, *self.source.ancestors(use)}
        if isinstance(node, (ast.arg, ast.comprehension)):
            return True
        if isinstance(node, (ast.For, ast.AsyncFor)) and node in around:
            return True
        child: ast.AST = self.source.statement(node)
        parent = self.source.parents.get(child)
        while isinstance(parent, (ast.With, ast.AsyncWith, ast.Try)):
            if parent in around or (isinstance(parent, ast.Try) and child not in parent.body):
                break
            child, parent = parent, self.source.parents.get(parent)
        return parent is None or parent in around

    def _apart(self, binding: Binding, use: ast.AST) -> bool:
        return apart(self.source, binding.node, use)

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value, (), node)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, value, (), node)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value, (), node)
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                self._bind(target, value, (EACH,), node, end_place(value))
            case ast.comprehension(target=target, iter=value):
                self._bind(target, value, (EACH,), node, (0, 0))
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        place = end_place(item.optional_vars)
                        self._bind(item.optional_vars, item.context_expr, (), node, place)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self._add(Binding(name, "augmented", node, end_place(node), value))
            case ast.Import() | ast.ImportFrom():
                self._read_import(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._add(Binding(node.name, "definition", node, start_place(node)))
            case ast.ExceptHandler(name=str(name)):
                self._add(Binding(name, "other", node, start_place(node)))
            case ast.arg():
                self._add_parameter(node)

    def _bind(
        self,
        target: ast.expr,
        value: ast.expr,
        steps: tuple[Step, ...],
        node: ast.AST,
        place: Place | None = None,
    ) -> None:
        for leaf, way in _leaves(target):
            if isinstance(leaf, ast.Name):
                where = end_place(node) if place is None else place
                self._add(Binding(leaf.id, "value", node, where, value, steps + way))
            elif isinstance(leaf, ast.Attribute) and isinstance(node, ast.stmt):
                self.members.append(Member(leaf.value, leaf.attr, node, value, steps + way))
            elif isinstance(leaf, ast.Subscript) and isinstance(node, ast.stmt):
                key = leaf.slice.value if isinstance(leaf.slice, ast.Constant) else ANY
                self.members.append(Member(leaf.value, f"[{key!s}]", node, value, steps + way))

    def _add(self, binding: Binding) -> None:
        scope = self.scope(binding.node)
        if isinstance(binding.node, ast.NamedExpr):
            scope = self.function(binding.node)
        if isinstance(binding.node, ast.comprehension):
            scope = self.source.parents[binding.node]
        home = self._outer[scope].get(binding.name, scope)
        self.tables[home].setdefault(binding.name, []).append(binding)

    def _add_parameter(self, node: ast.arg) -> None:
        home = next(self.source.ancestors(self.source.parents[node]), None)
        if home is not None:
            binding = Binding(node.arg, "parameter", node, (0, 0))
            self.tables[home].setdefault(node.arg, []).append(binding)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        base = _base(node, self.source.module) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(base)
                continue
            path = f"{base}.{alias.name}" if base else alias.name
            if isinstance(node, ast.Import) and not alias.asname:
                path = path.partition(".")[0]
            name = alias.asname or path.rpartition(".")[2]
            self._add(Binding(name, "import", node, end_place(node), path=path))


def _inside(child: ast.AST, scope: ast.AST) -> bool:
    """Whether a child of a scope's node uses the names of that scope, not of the outer one."""
    if isinstance(scope, (*FUNCTIONS, ast.ClassDef)):
        return any(child is statement for statement in scope.body)
    return not (isinstance(scope, ast.Lambda) and child is scope.args)


def _leaves(target: ast.expr) -> Iterator[tuple[ast.expr, tuple[Step, ...]]]:
    """The single targets of an assignment, each with its steps through the unpacking."""
    if isinstance(target, ast.Starred):
        yield target.value, (ANY,)
    elif isinstance(target, (ast.Tuple, ast.List)):
        stars = [n for n, part in enumerate(target.elts) if isinstance(part, ast.Starred)]
        for n, part in enumerate(target.elts):
            after_star = bool(stars) and n > stars[0]
            for leaf, way in _leaves(part):
                place = n - after_star * len(target.elts)
                yield leaf, way if isinstance(part, ast.Starred) else (place, *way)
    else:
        yield target, ()


def _base(node: ast.ImportFrom, module: str) -> str:
    """The absolute name of the module in `from ... import`."""
    if not node.level:
        return node.module or ""
    package = module.split(".")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])
