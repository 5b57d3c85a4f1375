"""Fixes of one call in the script: set its keywords, or wrap an argument."""

import ast
import inspect
import io
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from onsight_explain.fixes.draft import CannotFix, Draft, replace_node, starts_line
from onsight_explain.fixes.fix import Fix
from onsight_explain.script.trace import Trace
from onsight_lint.edits import Change


@dataclass(frozen=True)
class CallFix(Fix):
    """A fix of one call."""

    name: str  # the called name
    parameters: tuple[str, ...] = field(default=(), kw_only=True)  # positional, by name

    @property
    def merge_key(self) -> object:
        return self.site, self.name

    def summary(self, draft: Draft) -> str:
        """Return the call as it is now, in one line."""
        call = self._find(draft)
        code = draft.source.code(call)
        return ast.unparse(call) if "\n" in code else code

    def _find(self, draft: Draft) -> ast.Call:
        if self.site is None:
            raise CannotFix(f"it is not known which line calls {self.name}")
        return draft.find_call(self.site, self.name)

    def _find_argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """Return the argument for a parameter, given by keyword or by position."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if name not in self.parameters:
            return None
        at = self.parameters.index(name)
        if any(isinstance(argument, ast.Starred) for argument in call.args[: at + 1]):
            raise CannotFix(f"{name} may be in the arguments after *")
        return call.args[at] if at < len(call.args) else None


@dataclass(frozen=True)
class SetKeywords(CallFix):
    """Sets arguments of a call, given as source code. None removes an argument."""

    values: Mapping[str, str | None] = field(kw_only=True)

    @property
    def instruction(self) -> str:
        keywords = [f"{name}={value}" for name, value in self.values.items() if value is not None]
        return f"{self.name}(..., {', '.join(keywords)})"

    def apply(self, draft: Draft) -> None:
        """Replace, add or remove the arguments, one by one."""
        for name, value in self.values.items():
            call = self._find(draft)
            if value is None:
                draft.change(_remove_keyword(draft, call, name))
            else:
                draft.change([self._set_keyword(draft, call, name, value)])

    def _set_keyword(self, draft: Draft, call: ast.Call, name: str, value: str) -> Change:
        argument = self._find_argument(call, name)
        if argument is not None:
            return replace_node(draft, argument, value)
        for keyword in call.keywords:
            if keyword.arg is None:  # **settings may contain the name too: the last item counts
                settings = draft.source.code(keyword.value)
                return replace_node(draft, keyword.value, _add_item(settings, name, value))
        return append_argument(draft, call, f"{name}={value}")


@dataclass(frozen=True)
class WrapArgument(CallFix):
    """Wraps an argument of a call. template: source code, with {} in place of the argument."""

    parameter: str = field(kw_only=True)
    template: str = field(kw_only=True)

    @property
    def instruction(self) -> str:
        return f"{self.name}({self.template.replace('{}', '...')}, ...)"

    def apply(self, draft: Draft) -> None:
        argument = self._find_argument(self._find(draft), self.parameter)
        if argument is None:
            raise CannotFix(f"the call does not name its {self.parameter}")
        start, end = draft.source.start(argument), draft.source.end(argument)
        before, after = self.template.split("{}")
        draft.change([(start, start, before), (end, end, after)])


# The calls that a trace contains


def loader_keywords(trace: Trace, **values: Any) -> SetKeywords:
    """Set arguments of the training loader, which the trace must have. None removes one."""
    return loader_code(trace, **_to_code(values))


def loader_code(trace: Trace, **values: str | None) -> SetKeywords:
    """Set arguments of the training loader, given as source code."""
    assert trace.loader
    return SetKeywords(
        trace.loader.site, "DataLoader", parameters=_LOADER_PARAMETERS, values=values
    )


def remove_workers(trace: Trace) -> SetKeywords:
    """Load in the training process; removes the arguments that DataLoader refuses then."""
    assert trace.loader
    if not trace.loader.workers:
        return loader_keywords(trace)
    refused = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
    return loader_keywords(trace, num_workers=0, **dict.fromkeys(refused))


def wrap_dataset(trace: Trace, template: str) -> WrapArgument:
    """Wrap the training loader's dataset. template: source code with {} for the dataset."""
    assert trace.loader
    return WrapArgument(
        trace.loader.site,
        "DataLoader",
        parameters=_LOADER_PARAMETERS,
        parameter="dataset",
        template=template,
    )


def optimizer_keywords(trace: Trace, **values: Any) -> SetKeywords:
    """Set arguments of the optimizer, which the trace must have."""
    assert trace.optimizer
    kind = getattr(torch.optim, trace.optimizer.name, None)
    return SetKeywords(
        trace.optimizer.site,
        trace.optimizer.name,
        parameters=_positional_parameters(kind.__init__) if kind else (),
        values=_to_code(values),
    )


# Arguments and their commas


class Token(NamedTuple):
    """A token of the draft."""

    kind: int  # as in `tokenize`
    text: str
    start: int  # index into the draft's text


def append_argument(draft: Draft, call: ast.Call, text: str) -> Change:
    """Return the change that adds an argument at the end of a call, laid out like the others."""
    source = draft.source
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp):
        raise CannotFix("its only argument is a generator without separate parentheses")
    last_token = _without_layout(call_tokens(draft, call))[-2]  # before the parenthesis
    at = last_token.start + len(last_token.text)
    if not arguments:
        return Change(at, at, text)
    margin = source.indentation(max(arguments, key=source.start))
    last = max([*call.args, *call.keywords], key=source.start)
    gap = f"\n{margin}" if starts_line(draft, last) else " "
    new = f"{gap}{text}," if last_token.text == "," else f",{gap}{text}"
    return Change(at, at, new)


def call_tokens(draft: Draft, call: ast.Call) -> list[Token]:
    """Return the tokens of a call."""
    source = draft.source
    start = source.start(call)
    code = draft.text[start : source.end(call)]
    line_starts = [0, *accumulate(len(line) + 1 for line in code.split("\n"))]
    tokens = []
    # In added parentheses, because outside its statement the call may not continue on new lines.
    for token in tokenize.generate_tokens(io.StringIO(f"({code})", newline="").readline):
        row, column = token.start
        offset = line_starts[row - 1] + column - (1 if row == 1 else 0)
        tokens.append(Token(token.type, token.string, start + offset))
    closing = source.end(call) - 1
    return [token for token in tokens if start <= token.start <= closing]


def _without_layout(tokens: list[Token]) -> list[Token]:
    return [token for token in tokens if token.kind not in (tokenize.NL, tokenize.COMMENT)]


def _remove_keyword(draft: Draft, call: ast.Call, name: str) -> list[Change]:
    """Return the changes that remove a keyword from a call, if it has it."""
    source = draft.source
    for keyword in call.keywords:
        if keyword.arg == name:
            return [_remove_with_comma(draft, call, source.start(keyword), source.end(keyword))]
    if any(keyword.arg is None for keyword in call.keywords) and name in draft.text:
        raise CannotFix(f"{name} may be in the keywords after **")
    return []


def _remove_with_comma(draft: Draft, call: ast.Call, start: int, end: int) -> Change:
    """Return the change that removes a part of a call's arguments and one comma beside it."""
    all_tokens = call_tokens(draft, call)
    tokens = _without_layout(all_tokens)
    after = next(token for token in tokens if token.start >= end)
    if after.text != ",":
        before = [token for token in tokens if token.start < start][-1]
        return Change(before.start if before.text == "," else start, end, "")
    following = next(token for token in all_tokens if token.start > after.start)
    if following.kind != tokenize.NL:
        return Change(start, following.start, "")
    start = len(draft.text[:start].rstrip(" \t"))
    is_on_own_line = draft.text[start - 1] == "\n"
    end = following.start + len(following.text if is_on_own_line else "")
    return Change(start, end, "")


def _add_item(mapping: str, name: str, value: str) -> str:
    """Return the source code of a mapping with one more item."""
    if mapping.startswith("{**") and mapping.endswith("}"):
        return f'{mapping[:-1].rstrip(", ")}, "{name}": {value}}}'
    return f'{{**{mapping}, "{name}": {value}}}'


def _to_code(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else repr(value) for name, value in values.items()}


def _positional_parameters(method: Callable[..., None]) -> tuple[str, ...]:
    """Return the names of the positional parameters of a method, without self."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)[1:]


_LOADER_PARAMETERS = _positional_parameters(DataLoader.__init__)
