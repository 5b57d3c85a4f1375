"""Name binding: the assignments of a file by scope, and which of them reach a use."""

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal

from onsight_lint.source import SourceFile
from onsight_lint.syntax import COMPREHENSIONS, DEFINITIONS, Position, end_position, start_position

EACH = "*each"  # the step from an iterable to its elements
ANY = "*any"  # the step to an item whose key is unknown

_MAX_STARS = 20  # imports of all names of a module that are considered
_MAX_REACHING = 100  # bindings of a name that are considered; keeps the time linear

Step = int | str  # EACH, ANY, an index or a key
BindingKind = Literal["value", "parameter", "import", "definition", "augmented", "other"]

_BINDING_NODES = (
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
    *DEFINITIONS,
    ast.ExceptHandler,
    ast.arg,
)
_SCOPE_NODES = (ast.Module, *DEFINITIONS, ast.Lambda, *COMPREHENSIONS)


@dataclass(frozen=True, eq=False)
class Binding:
    """A place where a name is bound."""

    name: str
    kind: BindingKind
    node: ast.AST
    position: Position  # start of the code in which it is in effect
    value: ast.expr | None = None  # the expression that it comes from
    steps: tuple[Step, ...] = ()  # path from the value to the part bound to the name
    path: str = ""  # full name of an imported object


@dataclass(frozen=True, eq=False)
class Member:
    """An assignment to an attribute or item: `receiver.key = value`, `receiver[key] = value`."""

    receiver: ast.expr
    key: str  # attribute name, or the key of an item in brackets
    node: ast.stmt
    value: ast.expr
    steps: tuple[Step, ...]  # path from the value to the part that is assigned


class Scopes:
    """The bindings of a file."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.tables: dict[ast.AST, dict[str, list[Binding]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.members: list[Member] = []
        self.stars: list[str] = []  # modules of `from module import *`
        self._scopes: dict[ast.AST, ast.AST] = {}
        self._homes: dict[tuple[ast.AST, str], tuple[ast.AST, list[Binding]]] = {}
        self._last: dict[tuple[ast.AST, str, BindingKind], Binding | None] = {}
        self._global: dict[ast.AST, dict[str, ast.AST]] = defaultdict(dict)
        for statement in source.all(ast.Global):
            self._global[self.scope(statement)] |= dict.fromkeys(statement.names, source.tree)
        for node in source.all(*_BINDING_NODES):
            self._read(node)
        for table in self.tables.values():
            for bindings in table.values():
                bindings.sort(key=lambda binding: binding.position)

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the innermost function, class, comprehension or module around a node."""
        if node not in self._scopes:
            self._scopes[node] = self._find_scope(node)
        return self._scopes[node]

    def function(self, node: ast.AST) -> ast.AST:
        """Return the function or module in which a node runs."""
        scope = self.scope(node)
        while isinstance(scope, (*COMPREHENSIONS, ast.ClassDef)):
            scope = self.scope(scope)
        return scope

    @cached_property
    def attributes(self) -> dict[tuple[ast.AST, str], list[Member]]:
        """The assignments to attributes of self, by class and name."""
        attributes: dict[tuple[ast.AST, str], list[Member]] = defaultdict(list)
        for member in self.members:
            if isinstance(member.receiver, ast.Name) and member.receiver.id == "self":
                owner = self.source.enclosing_class(member.node)
                if owner is not None:
                    attributes[owner, member.key].append(member)
        return attributes

    def lookup(self, name: ast.Name) -> list[Binding]:
        """Return all bindings that a name may refer to, in source order."""
        return self._home(name)[1]

    def last(self, name: ast.Name, kind: BindingKind) -> Binding | None:
        """Return the last binding of a kind that a name may refer to."""
        key = self.scope(name), name.id, kind
        if key not in self._last:
            found = (item for item in reversed(self.lookup(name)) if item.kind == kind)
            self._last[key] = next(found, None)
        return self._last[key]

    def reaching(self, name: ast.Name) -> list[Binding]:
        """Return the bindings that may be in effect at a use.

        These are the last binding that has certainly been made and all after it that may have been.
        """
        home, bindings = self._home(name)
        if isinstance(home, (*COMPREHENSIONS, ast.ClassDef)):
            home = self.function(home)
        end = bisect_right(bindings, start_position(name), key=attrgetter("position"))
        earlier = reversed(bindings[max(0, end - _MAX_REACHING) : end])
        reaching: list[Binding] = []
        for binding in earlier if home is self.function(name) else ():
            if binding.kind == "augmented" or self.source.are_alternatives(binding.node, name):
                continue
            reaching.append(binding)
            if self.has_run(binding.node, name):
                return reaching
        candidates = [item for item in bindings[:_MAX_REACHING] if item.kind != "augmented"]
        return reaching or candidates

    def has_run(self, node: ast.AST, use: ast.AST) -> bool:
        """Return whether a statement has certainly run when a later use is reached."""
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

    def _find_scope(self, node: ast.AST) -> ast.AST:
        parents = self.source.parents
        child, parent = node, parents.get(node)
        while parent is not None:
            if isinstance(parent, _SCOPE_NODES) and _uses_names_of(child, parent):
                return parent
            child, parent = parent, parents.get(parent)
        return self.source.tree

    def _home(self, name: ast.Name) -> tuple[ast.AST, list[Binding]]:
        """The scope that a name belongs to, and its bindings there."""
        key = self.scope(name), name.id
        if key not in self._homes:
            self._homes[key] = self._find_home(*key)
        return self._homes[key]

    def _find_home(self, start: ast.AST, name: str) -> tuple[ast.AST, list[Binding]]:
        scope = start
        while True:
            home = self._global[scope].get(name, scope)
            bindings = self.tables[home].get(name)
            if bindings and (scope is start or not isinstance(scope, ast.ClassDef)):
                return home, bindings
            if scope is self.source.tree:
                return scope, []
            scope = self.scope(scope)

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
                self._bind(target, value, (EACH,), node, end_position(value))
            case ast.comprehension(target=target, iter=value):
                self._bind(target, value, (EACH,), node, (0, 0))
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        position = end_position(item.optional_vars)
                        self._bind(item.optional_vars, item.context_expr, (), node, position)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self._add(Binding(name, "augmented", node, end_position(node), value))
            case ast.Import() | ast.ImportFrom():
                self._read_import(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._add(Binding(node.name, "definition", node, start_position(node)))
            case ast.ExceptHandler(name=str(name)):
                self._add(Binding(name, "other", node, start_position(node)))
            case ast.arg(arg=name):
                home = self.source.parents[self.source.parents[node]]
                self.tables[home][name].append(Binding(name, "parameter", node, (0, 0)))

    def _bind(
        self,
        target: ast.expr,
        value: ast.expr,
        steps: tuple[Step, ...],
        node: ast.AST,
        position: Position | None = None,
    ) -> None:
        for leaf, unpacking in _single_targets(target):
            path = steps + unpacking
            if isinstance(leaf, ast.Name):
                effective = end_position(node) if position is None else position
                self._add(Binding(leaf.id, "value", node, effective, value, path))
            elif isinstance(leaf, ast.Attribute) and isinstance(node, ast.stmt):
                self.members.append(Member(leaf.value, leaf.attr, node, value, path))
            elif isinstance(leaf, ast.Subscript) and isinstance(node, ast.stmt):
                key = leaf.slice.value if isinstance(leaf.slice, ast.Constant) else ANY
                self.members.append(Member(leaf.value, f"[{key!s}]", node, value, path))

    def _add(self, binding: Binding) -> None:
        scope = self.scope(binding.node)
        if isinstance(binding.node, ast.NamedExpr):
            scope = self.function(binding.node)
        if isinstance(binding.node, ast.comprehension):
            scope = self.source.parents[binding.node]
        home = self._global[scope].get(binding.name, scope)
        self.tables[home][binding.name].append(binding)

    def _read_import(self, node: ast.Import | ast.ImportFrom) -> None:
        base = module_name(node, self.source.module) if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            if alias.name == "*":
                self.stars += [base] if len(self.stars) < _MAX_STARS else []
                continue
            path = f"{base}.{alias.name}" if base else alias.name
            if isinstance(node, ast.Import) and not alias.asname:
                path = path.partition(".")[0]
            name = alias.asname or path.rpartition(".")[2]
            self._add(Binding(name, "import", node, end_position(node), path=path))


def module_name(node: ast.ImportFrom, importer: str) -> str:
    """Return the absolute name of the module in `from ... import`, by that of the importing one."""
    package = importer.split(".")[: -node.level] if node.level else []
    return ".".join([*package, *([node.module] if node.module else [])])


def _uses_names_of(child: ast.AST, scope: ast.AST) -> bool:
    """Return whether a direct child of a scope's node is in that scope, not in the outer one.

    The decorators and defaults of a function, for example, are in the outer one.
    """
    if isinstance(scope, DEFINITIONS):
        return any(child is statement for statement in scope.body)
    return not (isinstance(scope, ast.Lambda) and child is scope.args)


def _single_targets(target: ast.expr) -> Iterator[tuple[ast.expr, tuple[Step, ...]]]:
    """The single targets of an assignment, each with its steps through the unpacking."""
    if isinstance(target, ast.Starred):
        yield target.value, (ANY,)
    elif isinstance(target, (ast.Tuple, ast.List)):
        stars = [n for n, part in enumerate(target.elts) if isinstance(part, ast.Starred)]
        for n, part in enumerate(target.elts):
            is_after_star = bool(stars) and n > stars[0]
            for leaf, steps in _single_targets(part):
                index = n - is_after_star * len(target.elts)
                yield leaf, steps if isinstance(part, ast.Starred) else (index, *steps)
    else:
        yield target, ()
