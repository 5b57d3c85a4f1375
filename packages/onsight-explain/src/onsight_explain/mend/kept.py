"""Mends that stack the items of a data set once, and gather batches from them by index."""

import inspect
import re
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.calls import loader_code, loader_dataset, loader_keywords, no_workers
from onsight_explain.mend.datasets import fits, keep_items
from onsight_explain.mend.draft import Draft
from onsight_explain.mend.mend import Mend, Together
from onsight_explain.mend.whole import Advice, Definition
from onsight_explain.script import batched
from onsight_explain.script.trace import Trace

_KEPT_BATCHES = '''
class KeptBatches:
    """The items of a data set, made and stacked once; a batch is gathered from them by index."""

    def __init__(self, dataset):
        self.dataset = dataset
        items = [dataset[index] for index in range(len(dataset))]
        parts = torch.utils.data.default_collate(items)
        self.parts = [part{to} for part in parts]

    def __len__(self):
        return len(self.parts[0])

    def __getitem__(self, index):
        return [part[index] for part in self.parts]

    def __getitems__(self, indices):
        indices = torch.tensor(indices, device=self.parts[0].device)
        return [part[indices] for part in self.parts]

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''

_AUGMENTED_BATCHES = '''
class AugmentedBatches:
    """Items kept without their random transforms, which whole batches go through instead."""

    def __init__(self, dataset):
        self.dataset, whole = dataset, dataset.transform
        self.steps = whole.transforms
        dataset.transform = torchvision.transforms.Compose([{kept}])
        items = [dataset[index] for index in range(len(dataset))]
        dataset.transform = whole
        self.parts = [part{to} for part in torch.utils.data.default_collate(items)]

    def __len__(self):
        return len(self.parts[0])

    def __getitem__(self, index):
        return [part[0] for part in self.__getitems__([index])]

    def __getitems__(self, indices):
        indices = torch.tensor(indices, device=self.parts[0].device)
        images, *others = (part[indices] for part in self.parts)
        return [self.augment(images), *others]

    def augment(self, images):
{changes}
        return images

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''


def kept_batches(trace: Trace, device: str = "cpu") -> list[Mend]:
    """The training loader's items stacked on a device; items that cannot be are kept one by one."""
    if not (trace.item and trace.item.stacks and trace.loader and trace.loader.is_collated):
        return keep_items(trace)
    code = _KEPT_BATCHES.replace("{to}", _sent(device))
    definition = Definition(trace.loader.site, "KeptBatches", code, ("import torch",))
    return _gathered(trace, device, definition, "KeptBatches({})")


def augmented_batches(trace: Trace, device: str = "cpu") -> list[Mend]:
    """The training loader's items stacked without their random part, which batches go through."""
    assert trace.loader
    assert trace.item
    assert trace.item.moved
    moved = trace.item.moved
    kept = [f"self.steps[{number}]" for number in moved.kept] + moved.conversions
    lines = "\n".join(f"        images = {one}" for one in moved.changes)
    code = (
        _AUGMENTED_BATCHES.replace("{kept}", ", ".join(kept))
        .replace("{to}", _sent(device))
        .replace("{changes}", lines)
    )
    functions = "\n\n\n".join(_sources(lines))
    whole = f"{functions}\n\n\n{code.strip()}" if functions else code
    definition = AugmentedBatches(trace.loader.site, whole)
    return _gathered(trace, device, definition, "AugmentedBatches({})")


@dataclass(frozen=True)
class AugmentedBatches(Mend):
    """The class that augments whole batches, and the functions that it calls."""

    code: str
    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """What it does."""
        return "keep the items without their random transforms, and augment whole batches"

    def apply(self, draft: Draft) -> None:
        """Define them below the imports."""
        needs = ("import torch", "import torchvision")
        Definition(None, "AugmentedBatches", self.code, needs).apply(draft)


def _gathered(trace: Trace, device: str, definition: Mend, template: str) -> list[Mend]:
    """The mends that a loader needs for its batches to come from a new class."""
    assert trace.loader
    if not fits(trace):
        return [Advice(trace.loader.site, "keep the items in memory, on a machine with more of it")]
    keywords = loader_code(trace, collate_fn="list")
    pinned = [] if device == "cpu" else [loader_keywords(trace, pin_memory=None)]
    dataset = loader_dataset(trace, template)
    return [Together(None, (definition, dataset, keywords, *pinned, no_workers(trace)))]


def _sent(device: str) -> str:
    return "" if device == "cpu" else f'.to("{device}")'


def _sources(code: str) -> list[str]:
    """The text of the functions that some code calls, those that they call first."""
    names = [one for one, _ in inspect.getmembers(batched, inspect.isfunction)]
    wanted: list[str] = []

    def add(text: str) -> None:
        for name in names:
            if re.search(rf"\b{name}\(", text) and name not in wanted:
                wanted.append(name)
                add(inspect.getsource(getattr(batched, name)).partition("\n")[2])

    add(code)
    ordered = inspect.getsource(batched)
    wanted.sort(key=lambda name: ordered.index(f"def {name}("))
    return [_plain(inspect.getsource(getattr(batched, name)).strip()) for name in wanted]


def _plain(code: str) -> str:
    """A function's text without annotations, which name what the script may not import."""
    import ast

    tree = ast.parse(code)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for one in ast.walk(function.args):
        if isinstance(one, ast.arg):
            one.annotation = None
    return ast.unparse(tree).replace("F.", "torch.nn.functional.")
