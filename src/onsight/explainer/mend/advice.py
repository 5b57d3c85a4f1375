"""The lines to change in a script, by file and line."""

import ast
from dataclasses import dataclass, replace

from onsight.explainer.script.notebook import source_of
from onsight.explainer.script.trace import Trace
from onsight.explainer.tracing.sites import Site


@dataclass(frozen=True)
class Line:
    """What to write, and at which line of a user's file; site: None if that is unknown."""

    site: Site | None
    text: str


@dataclass(frozen=True)
class Edit:
    """Keywords that a call of the script should have; several edits of a call become one line.

    keeps_items: its data set becomes a list of its items.
    """

    site: Site | None
    name: str
    keywords: dict[str, int]
    keeps_items: bool = False


def loader_edit(trace: Trace, *, keeps_items: bool = False, **keywords: int) -> Edit:
    """Keywords for the training loader, which the trace must have."""
    assert trace.loader
    return Edit(trace.loader.site, "DataLoader", keywords, keeps_items)


def merged(wanted: list[Edit | Line]) -> list[Line]:
    """One line for each call or place, in the order in which they first appear."""
    found: dict[object, Edit | Line] = {}
    for one in wanted:
        key = (one.site, one.name) if isinstance(one, Edit) else one
        former = found.get(key)
        if isinstance(former, Edit) and isinstance(one, Edit):
            one = replace(
                one,
                keywords=former.keywords | one.keywords,
                keeps_items=former.keeps_items or one.keeps_items,
            )
        found[key] = one
    return [_line(one) if isinstance(one, Edit) else one for one in found.values()]


def _line(edit: Edit) -> Line:
    """The script's own call, edited."""
    call = _find_call(edit.site, edit.name)
    if call is None:
        call = ast.Call(ast.Name(edit.name), [ast.Constant(...)], [])
    return Line(edit.site, ast.unparse(ast.fix_missing_locations(_edited(call, edit))))


def _find_call(site: Site | None, name: str) -> ast.Call | None:
    if site is None:
        return None
    for node in ast.walk(ast.parse(source_of(site.file))):
        if not isinstance(node, ast.Call) or _called(node) != name:
            continue
        if node.lineno <= site.line <= (node.end_lineno or node.lineno):
            return node
    return None


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _edited(call: ast.Call, edit: Edit) -> ast.Call:
    kept = [one for one in call.keywords if one.arg not in edit.keywords]
    added = [ast.keyword(name, ast.Constant(value)) for name, value in edit.keywords.items()]
    # batch_size may be the second positional argument
    args = call.args[:1] if "batch_size" in edit.keywords else list(call.args)
    if edit.keeps_items and args:
        args[0] = ast.parse(f"[item for item in {ast.unparse(args[0])}]", mode="eval").body
    return ast.Call(call.func, args, [*kept, *added])
