"""A mend that copies each batch to the GPU while it computes with the one before."""

import ast
from dataclasses import dataclass

from onsight_explain.mend.draft import CannotMend, Draft
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.names import loop_around
from onsight_explain.mend.training import copies_of
from onsight_explain.mend.whole import Definition

_COPIED_AHEAD = '''
class CopiedAhead:
    """A loader's batches on a GPU: each is copied while the one before it is in use."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, torch.device(device)

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __iter__(self):
        batches = iter(self.loader)
        if self.device.type != "cuda":
            yield from batches
            return
        side = torch.cuda.Stream(self.device)
        ahead = self.copied(batches, side)
        while ahead is not None:
            now = torch.cuda.current_stream(self.device)
            now.wait_stream(side)
            for part in ahead:
                part.record_stream(now)  # its memory must not be used again before that
            batch, ahead = ahead, self.copied(batches, side)
            yield batch

    def copied(self, batches, side):
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return [part.to(self.device, non_blocking=True) for part in batch]
'''


@dataclass(frozen=True)
class Ahead(Mend):
    """The loader of the loop around a site, drawn from one batch ahead."""

    @property
    def words(self) -> str:
        """What to do."""
        return (
            "copy the next batch in a stream of its own while the GPU computes: pin_memory=True, "
            "then batch.to(device, non_blocking=True) under torch.cuda.stream(side), "
            "torch.cuda.current_stream().wait_stream(side) before it is used, and record_stream on "
            "its tensors"
        )

    def apply(self, draft: Draft) -> None:
        """Put the loader into the class, if the loop sends all that it takes to one device."""
        loop = self._loop(draft)
        device, loader = _device(draft, loop), _loader(loop)
        start, end = draft.source.start(loader), draft.source.end(loader)
        draft.change([(start, start, "CopiedAhead("), (end, end, f", {device})")])
        Definition(self.site, "CopiedAhead", _COPIED_AHEAD, ("import torch",)).apply(draft)

    def told(self, draft: Draft) -> str:
        """The loop's new head."""
        loop = self._loop(draft)
        target, batches = ast.unparse(loop.target), ast.unparse(loop.iter)
        return f"for {target} in {batches}:"

    def _loop(self, draft: Draft) -> ast.For:
        assert self.site
        return loop_around(draft, draft.statement(self.site))


def _loader(loop: ast.For) -> ast.expr:
    """What the loop draws from: a name inside calls such as enumerate(...) or tqdm(...)."""
    inner = loop.iter
    while isinstance(inner, ast.Call) and inner.args:
        inner = inner.args[0]
    if not isinstance(inner, ast.Name | ast.Attribute):
        raise CannotMend("it is not certain what the loop draws from")
    return inner


def _device(draft: Draft, loop: ast.For) -> str:
    """Where the loop sends every part of its batch, as source code."""
    parts = _parts(loop)
    found: dict[str, str] = {}
    for call in copies_of(loop):
        assert isinstance(call.func, ast.Attribute)
        if not isinstance(call.func.value, ast.Name):
            raise CannotMend("the loop sends parts of a batch that has no names")
        found[call.func.value.id] = _sent_to(draft, call, call.func.attr)
    if not parts or set(found) != parts or len(set(found.values())) != 1:
        raise CannotMend("the loop does not send all of its batch to one device")
    return found.popitem()[1]


def _parts(loop: ast.For) -> set[str]:
    """The names that the loop gives to the parts of a batch."""
    target = loop.target
    calls = [one for one in ast.walk(loop.iter) if isinstance(one, ast.Call)]
    is_counted = any(isinstance(one.func, ast.Name) and one.func.id == "enumerate" for one in calls)
    if is_counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if not isinstance(target, ast.Tuple | ast.List):
        return set()
    names = [one.id for one in target.elts if isinstance(one, ast.Name)]
    return set(names) if len(names) == len(target.elts) else set()


def _sent_to(draft: Draft, call: ast.Call, method: str) -> str:
    """The device of a copy, which is the same in every step."""
    if method == "cuda" and not call.args:
        return '"cuda"'
    first = call.args[0] if call.args else None
    if method != "to" or not isinstance(first, ast.Name | ast.Attribute | ast.Constant):
        raise CannotMend("it is not certain which device the batch is sent to")
    return draft.source.code(first)
