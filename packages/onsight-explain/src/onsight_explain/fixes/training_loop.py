"""Fixes of a training loop: convert its batches, prepare the network, copy batches ahead."""

import ast
from dataclasses import dataclass

from onsight_explain.fixes.calls import append_argument
from onsight_explain.fixes.draft import CannotFix, Draft, insert_before, put_on_own_lines
from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.locate import (
    fill_names,
    find_batch_argument,
    find_batch_copies,
    find_enclosing_loop,
    find_network_call,
    find_training_loop,
)
from onsight_explain.fixes.whole_file import AddDefinition


@dataclass(frozen=True)
class ConvertBatch(Fix):
    """Converts the batch that is passed to the network at a site."""

    template: str  # source code, with {} in place of the batch
    imports = ("import torch",)

    @property
    def instruction(self) -> str:
        return f"{self.template.replace('{}', 'images')}  # the input of the network"

    def apply(self, draft: Draft) -> None:
        """Assign to a name on a separate line; convert any other expression in place."""
        assert self.site
        batch = find_batch_argument(draft, self.site)
        before, after = self.template.split("{}")
        if isinstance(batch, ast.Name):
            statement = draft.source.statement(batch)
            draft.change(put_on_own_lines(draft, statement, statement))
            statement = draft.source.statement(find_batch_argument(draft, self.site))
            draft.change([insert_before(draft, statement, self._assignment(batch.id))])
            return
        start, end = draft.source.start(batch), draft.source.end(batch)
        if after.startswith(".") and not isinstance(
            batch, ast.Call | ast.Attribute | ast.Subscript
        ):
            before, after = f"{before}(", f"){after}"
        draft.change([(start, start, before), (end, end, after)])

    def summary(self, draft: Draft) -> str:
        assert self.site
        batch = find_batch_argument(draft, self.site)
        if isinstance(batch, ast.Name):
            return self._assignment(batch.id)
        return ast.unparse(find_network_call(draft, self.site))

    def _assignment(self, name: str) -> str:
        return f"{name} = {self.template.replace('{}', name)}"


@dataclass(frozen=True)
class BeforeTraining(Fix):
    """Inserts a statement above the training loop around a site."""

    text: str  # with {network} for the network that is called at the site
    imports = ("import torch",)

    @property
    def instruction(self) -> str:
        return f"{self.text.replace('{network}', 'model')}  # once, before the training"

    def apply(self, draft: Draft) -> None:
        """Insert it above the outermost loop in which the network stays the same."""
        assert self.site
        network = draft.source.code(find_network_call(draft, self.site).func)
        loop = find_training_loop(draft, self.site, network)
        draft.change(put_on_own_lines(draft, loop, loop))
        loop = find_training_loop(draft, self.site, network)
        draft.change([insert_before(draft, loop, fill_names(draft, self.site, self.text))])

    def summary(self, draft: Draft) -> str:
        return f"{fill_names(draft, self.site, self.text)}  # once, before the training"


@dataclass(frozen=True)
class NonBlockingCopies(Fix):
    """Copies the batch to the device, in the loop around a site, without waiting."""

    instruction = "images.to(device, non_blocking=True)"

    def apply(self, draft: Draft) -> None:
        """Add the keyword to every `.to` and `.cuda` of what the loop receives."""
        copies = self._find_copies(draft)
        if not copies:
            raise CannotFix("the loop has no copies of its batch")
        draft.change([append_argument(draft, copy, "non_blocking=True") for copy in copies])

    def summary(self, draft: Draft) -> str:
        return ", ".join(draft.source.code(copy) for copy in self._find_copies(draft))

    def _find_copies(self, draft: Draft) -> list[ast.Call]:
        assert self.site
        return find_batch_copies(find_enclosing_loop(draft, draft.find_statement(self.site)))


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
        ahead = self.copy_next(batches, side)
        while ahead is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(side)
            for part in ahead:
                part.record_stream(current)  # its memory must not be reused before that
            batch, ahead = ahead, self.copy_next(batches, side)
            yield batch

    def copy_next(self, batches, side):
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return [part.to(self.device, non_blocking=True) for part in batch]
'''


@dataclass(frozen=True)
class CopyAhead(Fix):
    """Copies each batch of the loop around a site while the GPU computes with the previous one."""

    instruction = (
        "copy the next batch in a separate stream while the GPU computes: pin_memory=True, "
        "then batch.to(device, non_blocking=True) under torch.cuda.stream(side), "
        "torch.cuda.current_stream().wait_stream(side) before it is used, and record_stream on "
        "its tensors"
    )

    def apply(self, draft: Draft) -> None:
        """Wrap the loader, if the loop sends its whole batch to one device."""
        loop = self._find_loop(draft)
        device, loader = _find_device(draft, loop), _find_loader(loop)
        start, end = draft.source.start(loader), draft.source.end(loader)
        draft.change([(start, start, "CopiedAhead("), (end, end, f", {device})")])
        AddDefinition(self.site, "CopiedAhead", _COPIED_AHEAD, ("import torch",)).apply(draft)

    def summary(self, draft: Draft) -> str:
        loop = self._find_loop(draft)
        target, batches = ast.unparse(loop.target), ast.unparse(loop.iter)
        return f"for {target} in {batches}:"

    def _find_loop(self, draft: Draft) -> ast.For:
        assert self.site
        return find_enclosing_loop(draft, draft.find_statement(self.site))


def _find_loader(loop: ast.For) -> ast.expr:
    """Return the iterable of a loop: a name inside calls such as enumerate(...) or tqdm(...)."""
    inner = loop.iter
    while isinstance(inner, ast.Call) and inner.args:
        inner = inner.args[0]
    if not isinstance(inner, ast.Name | ast.Attribute):
        raise CannotFix("cannot tell what the loop iterates over")
    return inner


def _find_device(draft: Draft, loop: ast.For) -> str:
    """Return the device that the loop copies every part of its batch to, as source code."""
    parts = _batch_names(loop)
    devices: dict[str, str] = {}
    for call in find_batch_copies(loop):
        assert isinstance(call.func, ast.Attribute)
        if not isinstance(call.func.value, ast.Name):
            raise CannotFix("the loop sends parts of a batch that has no names")
        devices[call.func.value.id] = _copy_target(draft, call, call.func.attr)
    if not parts or set(devices) != parts or len(set(devices.values())) != 1:
        raise CannotFix("the loop does not send all of its batch to one device")
    return devices.popitem()[1]


def _batch_names(loop: ast.For) -> set[str]:
    """Return the names of the parts of a batch; none if a part has no name."""
    target = loop.target
    calls = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    is_counted = any(
        isinstance(call.func, ast.Name) and call.func.id == "enumerate" for call in calls
    )
    if is_counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    if not isinstance(target, ast.Tuple | ast.List):
        return set()
    names = [element.id for element in target.elts if isinstance(element, ast.Name)]
    return set(names) if len(names) == len(target.elts) else set()


def _copy_target(draft: Draft, call: ast.Call, method: str) -> str:
    """Return the device of a copy, if it is certain to be the same in every step."""
    if method == "cuda" and not call.args:
        return '"cuda"'
    first = call.args[0] if call.args else None
    if method != "to" or not isinstance(first, ast.Name | ast.Attribute | ast.Constant):
        raise CannotFix("it is not certain which device the batch is sent to")
    return draft.source.code(first)
