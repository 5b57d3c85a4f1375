"""Rule on rows paired by the order in which the disk lists their files."""

import ast
import re
from collections.abc import Iterator

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, replaced
from onsight.explain.reading.flow import key_of
from onsight.explain.reading.rules.listing import is_listing
from onsight.explain.reading.source import FUNCTIONS, own_nodes

_RULE = "rows-out-of-step"
_WHY = (
    "A folder is listed in no fixed order: it differs between machines, and between two folders "
    "with equal names."
)
_WHY_CLASSES = (
    "A folder is listed in no fixed order, so a class may get another number on another machine "
    "than the one that the network learned."
)
_READ_FILES = re.compile(r"^(read_csv|load|loadtxt|genfromtxt|read_json|readlines|read_table)$")
_CLASS_WORDS = re.compile(r"label|class|target|cls")


def listed_pairs(facts: Facts) -> Iterator[Finding]:
    """Listings of folders, unsorted, that are paired with something by their order."""
    for source in facts.script.sources:
        for node in source.nodes:
            if isinstance(node, ast.Call):
                yield from _zipped(facts, node)
            if isinstance(node, ast.For):
                yield from _numbered(facts, node.iter, node.target, node)
            if isinstance(node, ast.DictComp):
                first = node.generators[0]
                holder = source.statement(node)
                named = isinstance(holder, ast.Assign) and "idx" in last_name(holder.targets[0])
                yield from _numbered(facts, first.iter, first.target, node, named)
            if isinstance(node, ast.ClassDef):
                yield from _indexed_alike(facts, node)


def _zipped(facts: Facts, call: ast.Call) -> Iterator[Finding]:
    """`zip(os.listdir(a), ...)`."""
    if (
        last_name(call.func) != "zip"
        or len(call.args) < 2
        or facts.script.path_of(call.func) != "zip"
    ):
        return
    listings = [one for one in call.args if is_listing(facts, one)]
    others = [one for one in call.args if not any(one is listing for listing in listings)]
    if len(listings) < 2 and not (listings and any(_is_labels(facts, one) for one in others)):
        return
    edits = [replaced(one, f"sorted({facts.script.words(one)})") for one in listings]
    text = fixed(facts.script, call, edits)
    problem = f"{facts.script.words(listings[0])} is paired by the order in which the disk lists it"
    yield found(facts.script, call, _RULE, problem, _WHY, text)


def _numbered(
    facts: Facts, iterated: ast.expr, target: ast.expr, node: ast.AST, named: bool = False
) -> Iterator[Finding]:
    """`for label, name in enumerate(os.listdir(root))`."""
    if not isinstance(iterated, ast.Call) or last_name(iterated.func) != "enumerate":
        return
    if not iterated.args or not is_listing(facts, iterated.args[0]):
        return
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if named or _CLASS_WORDS.search(last_name(first)):
        listing = iterated.args[0]
        new = f"sorted({facts.script.words(listing)})"
        text = fixed(facts.script, listing, [replaced(listing, new)])
        problem = "classes are numbered in the order in which the disk lists their folders"
        yield found(facts.script, listing, _RULE, problem, _WHY_CLASSES, text)


def _indexed_alike(facts: Facts, owner: ast.ClassDef) -> Iterator[Finding]:
    """`self.images[i]` beside `self.masks[i]`, both as the disk lists them."""
    members = [
        member
        for member in facts.script.scope(owner).members
        if facts.script.enclosing_class(member.node) is owner
        and last_name(member.receiver) == "self"
        and not member.steps
    ]
    listed = {one.key: one for one in members if is_listing(facts, one.value)}
    listed = {key: one for key, one in listed.items() if not _is_sorted_later(owner, key)}
    if not listed:
        return
    for method in owner.body:
        if not isinstance(method, FUNCTIONS):
            continue
        places: dict[str, set[str]] = {}
        for node in own_nodes(method):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                words = facts.script.words(node.slice)
                places.setdefault(node.value.attr, set()).add(words)
        for key, one in listed.items():
            for other in members:
                together = places.get(key, set()) & places.get(other.key, set())
                if other.key == key or not together:
                    continue
                if _roots(facts, one.value) & _roots(facts, other.value):
                    continue
                if other.key in listed or _is_labels(facts, other.value):
                    new = f"sorted({facts.script.words(one.value)})"
                    text = fixed(facts.script, one.value, [replaced(one.value, new)])
                    problem = (
                        f"self.{key} and self.{other.key} are paired by an order left to the disk"
                    )
                    yield found(facts.script, one.node, _RULE, problem, _WHY, text)
                    return


def _roots(facts: Facts, value: ast.expr, depth: int = 3) -> set[ast.AST]:
    """The listings of the disk that a list was made from."""
    found: set[ast.AST] = set()
    for origin in facts.values.origins(value) if depth else []:
        if isinstance(origin.node, (ast.ListComp, ast.GeneratorExp)):
            found |= _roots(facts, origin.node.generators[0].iter, depth - 1)
        else:
            found.add(origin.node)
    return found


def _is_sorted_later(owner: ast.ClassDef, key: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sort"
        and key_of(node.func.value) == f"self.{key}"
        for node in ast.walk(owner)
    )


def _is_labels(facts: Facts, expression: ast.expr) -> bool:
    """Whether a value is a list of labels, read from a file or so named."""
    if re.search(r"label|target|(^|_)y$|classes$", last_name(expression)):
        origins = facts.values.origins(expression)
        return not any(_is_made_of_names(one.node) for one in origins)
    for origin in facts.values.origins(expression):
        names = {last_name(one.func) for one in ast.walk(origin.node) if isinstance(one, ast.Call)}
        if any(_READ_FILES.match(name) for name in names):
            return True
    return False


def _is_made_of_names(node: ast.AST) -> bool:
    """Whether labels were made out of the listed names themselves."""
    return isinstance(node, (ast.ListComp, ast.GeneratorExp))
