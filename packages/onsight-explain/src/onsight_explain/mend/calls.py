"""Mends of a call of the script: its keywords, and an argument put into another call."""

import ast
import inspect
import io
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from onsight_explain.mend.draft import CannotMend, Change, Draft
from onsight_explain.mend.mend import Mend
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site


@dataclass(frozen=True)
class OfCall(Mend):
    """A mend of one call.

    name: what is called; parameters: the names of its positional arguments.
    """

    site: Site | None
    name: str
    parameters: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def place(self) -> object:
        """The call."""
        return self.site, self.name

    def told(self, draft: Draft) -> str:
        """The call as it is now, in one line."""
        call = self._found(draft)
        code = draft.source.code(call)
        return ast.unparse(call) if "\n" in code else code

    def _found(self, draft: Draft) -> ast.Call:
        if self.site is None:
            raise CannotMend(f"it is not known which line calls {self.name}")
        return draft.call(self.site, self.name)

    def _argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """What the call gives a parameter, by keyword or by position."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if name not in self.parameters:
            return None
        at = self.parameters.index(name)
        if any(isinstance(one, ast.Starred) for one in call.args[: at + 1]):
            raise CannotMend(f"{name} may be in the arguments after *")
        return call.args[at] if at < len(call.args) else None


@dataclass(frozen=True)
class Keywords(OfCall):
    """Arguments that a call should have, as source code; None: it should not have this one."""

    values: Mapping[str, str | None] = field(kw_only=True)

    @property
    def words(self) -> str:
        """The keywords alone."""
        given = [f"{name}={value}" for name, value in self.values.items() if value is not None]
        return f"{self.name}(..., {', '.join(given)})"

    def apply(self, draft: Draft) -> None:
        """Replace, add or remove the arguments, one after the other."""
        for name, value in self.values.items():
            call = self._found(draft)
            if value is None:
                draft.change(_removed(draft, call, name))
            else:
                draft.change(self._set(draft, call, name, value))

    def _set(self, draft: Draft, call: ast.Call, name: str, value: str) -> list[Change]:
        source = draft.source
        given = self._argument(call, name)
        if given is not None:
            return [(source.start(given), source.end(given), value)]
        for keyword in call.keywords:
            if keyword.arg is None:  # **settings may hold it too, and the later one counts
                start, end = source.start(keyword.value), source.end(keyword.value)
                return [(start, end, _with_item(draft.text[start:end], name, value))]
        return [appended(draft, call, f"{name}={value}")]


@dataclass(frozen=True)
class Argument(OfCall):
    """An argument put into something else. template: source code, with {} for the argument."""

    parameter: str = field(kw_only=True)
    template: str = field(kw_only=True)

    @property
    def words(self) -> str:
        """The template alone."""
        return f"{self.name}({self.template.replace('{}', '...')}, ...)"

    def apply(self, draft: Draft) -> None:
        """Put the template around the argument."""
        given = self._argument(self._found(draft), self.parameter)
        if given is None:
            raise CannotMend(f"the call does not name its {self.parameter}")
        start, end = draft.source.start(given), draft.source.end(given)
        before, after = self.template.split("{}")
        draft.change([(start, start, before), (end, end, after)])


def loader_keywords(trace: Trace, **values: Any) -> Keywords:
    """Arguments for the training loader, which the trace must have; None removes one."""
    return loader_code(trace, **_as_code(values))


def loader_code(trace: Trace, **values: str | None) -> Keywords:
    """The same, given as source code."""
    assert trace.loader
    return Keywords(trace.loader.site, "DataLoader", parameters=_LOADER_PARAMETERS, values=values)


def no_workers(trace: Trace) -> Keywords:
    """No worker processes, and none of the arguments that a loader without them refuses."""
    assert trace.loader
    if not trace.loader.workers:
        return loader_keywords(trace)
    unfit = dict.fromkeys(("prefetch_factor", "persistent_workers", "timeout"))
    return loader_keywords(trace, num_workers=0, **unfit, multiprocessing_context=None)


def loader_dataset(trace: Trace, template: str) -> Argument:
    """The training loader's data set, put into something else."""
    assert trace.loader
    return Argument(
        trace.loader.site,
        "DataLoader",
        parameters=_LOADER_PARAMETERS,
        parameter="dataset",
        template=template,
    )


def optimizer_keywords(trace: Trace, **values: Any) -> Keywords:
    """Arguments for the optimizer, which the trace must have."""
    assert trace.optimizer
    kind = getattr(torch.optim, trace.optimizer.name, None)
    return Keywords(
        trace.optimizer.site,
        trace.optimizer.name,
        parameters=_parameters(kind.__init__) if kind else (),
        values=_as_code(values),
    )


def _as_code(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else repr(value) for name, value in values.items()}


def _parameters(function: Callable[..., None]) -> tuple[str, ...]:
    """The names of the positional parameters of a method, without self."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(function).parameters.values()
    return tuple(one.name for one in every if one.kind in kinds)[1:]


_LOADER_PARAMETERS = _parameters(DataLoader.__init__)


def _with_item(mapping: str, name: str, value: str) -> str:
    """Source code of a mapping with one more item."""
    if mapping.startswith("{**") and mapping.endswith("}"):
        return f'{mapping[:-1].rstrip(", ")}, "{name}": {value}}}'
    return f'{{**{mapping}, "{name}": {value}}}'


def _removed(draft: Draft, call: ast.Call, name: str) -> list[Change]:
    """The changes that take a keyword out of a call, if it has it."""
    source = draft.source
    for keyword in call.keywords:
        if keyword.arg == name:
            return [_with_comma(draft, call, source.start(keyword), source.end(keyword))]
    if any(one.arg is None for one in call.keywords) and f"{name}" in draft.text:
        raise CannotMend(f"{name} may be in the keywords after **")
    return []


def _with_comma(draft: Draft, call: ast.Call, start: int, end: int) -> Change:
    """A part of a call's arguments and one comma beside it, to be removed."""
    every = tokens_of(draft, call)
    tokens = [one for one in every if one[0] not in (tokenize.NL, tokenize.COMMENT)]
    after = next(one for one in tokens if one[2] >= end)
    if after[1] != ",":
        before = [one for one in tokens if one[2] < start][-1]
        return (before[2] if before[1] == "," else start), end, ""
    following = next(one for one in every if one[2] > after[2])
    if following[0] != tokenize.NL:
        return start, following[2], ""
    start = len(draft.text[:start].rstrip(" \t"))
    is_alone = draft.text[start - 1] == "\n"
    return start, following[2] + len(following[1] if is_alone else ""), ""


def appended(draft: Draft, call: ast.Call, text: str) -> Change:
    """The change that gives one more argument at the end of a call, laid out like the others."""
    source = draft.source
    given = [*call.args, *(one.value for one in call.keywords)]
    if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp):
        raise CannotMend("its only argument is a generator without parentheses of its own")
    tokens = [
        one for one in tokens_of(draft, call) if one[0] not in (tokenize.NL, tokenize.COMMENT)
    ]
    last = tokens[-2]  # before the closing parenthesis
    at = last[2] + len(last[1])
    if not given:
        return at, at, text
    final = max(given, key=source.start)
    margin = source.indentation(final)
    line_start = draft.text.rfind("\n", 0, source.start(final)) + 1
    argument = max([*call.args, *call.keywords], key=source.start)
    is_alone = draft.text[line_start : source.start(argument)].strip() == ""
    gap = f"\n{margin}" if is_alone else " "
    return (at, at, f"{gap}{text},") if last[1] == "," else (at, at, f",{gap}{text}")


def tokens_of(draft: Draft, call: ast.Call) -> list[tuple[int, str, int]]:
    """The tokens of a call: kind, text, and where it begins in the draft."""
    source = draft.source
    start = source.start(call)
    code = draft.text[start : source.end(call)]
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = []
    # In parentheses of its own, because it may go on in a line outside of the call's.
    for token in tokenize.generate_tokens(io.StringIO(f"({code})", newline="").readline):
        row, column = token.start
        offset = starts[row - 1] + column - (1 if row == 1 else 0)
        found.append((token.type, token.string, start + offset))
    closing = source.end(call) - 1
    return [one for one in found if start <= one[2] <= closing]
