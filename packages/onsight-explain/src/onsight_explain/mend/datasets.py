"""Mends that keep in memory what a data set makes anew in every epoch."""

import ast
from dataclasses import dataclass

import torch

from onsight_explain.devices import free_memory_bytes
from onsight_explain.mend.calls import appended, loader_dataset, no_workers
from onsight_explain.mend.draft import CannotMend, Draft, called
from onsight_explain.mend.mend import Mend, Together
from onsight_explain.mend.whole import Advice, Definition
from onsight_explain.script.augment_batches import is_random
from onsight_explain.script.trace import Trace

_KEPT = '''
class KeptItems:
    """The items of a data set, made once and kept in memory."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.items = [dataset[index] for index in range(len(dataset))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''

_FIXED_ONCE = '''
class FixedOnce:
    """The items of a data set; all transforms before the first random one are made only once."""

    def __init__(self, dataset, fixed):
        self.dataset, whole = dataset, dataset.transform
        self.random = whole.transforms[fixed:]
        dataset.transform = type(whole)(whole.transforms[:fixed])
        self.items = [dataset[index] for index in range(len(dataset))]
        dataset.transform = whole

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, *others = self.items[index]
        for transform in self.random:
            image = transform(image)
        return image, *others

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''

_OPEN_ONCE = '''
@functools.lru_cache(maxsize=None)
def open_once(path):
    """A decoded image; each is read only the first time, and then kept in memory."""
    return torchvision.datasets.folder.default_loader(path)
'''


def keep_items(trace: Trace) -> list[Mend]:
    """The training loader's items, made once."""
    assert trace.loader
    if not fits(trace):
        return [Advice(trace.loader.site, "keep the items in memory, on a machine with more of it")]
    definition = Definition(trace.loader.site, "KeptItems", _KEPT)
    parts = definition, loader_dataset(trace, "KeptItems({})"), no_workers(trace)
    return [Together(None, parts)]


def fits(trace: Trace) -> bool:
    """Whether all items fit in memory twice, as they do while they are stacked."""
    assert trace.loader
    needed = 2 * trace.item.item_bytes * (trace.loader.items or 0) if trace.item else 0
    return needed < free_memory_bytes(torch.device("cpu"))


@dataclass(frozen=True)
class FixedOnce(Mend):
    """The fixed transforms of the training loader's items, made once."""

    trace: Trace

    @property
    def words(self) -> str:
        """What to keep."""
        return (
            "do only once what is not random: keep a list of (image, label) after the fixed "
            "transforms, and let the data set apply the random ones to it"
        )

    @property
    def place(self) -> object:
        """The loader's call."""
        return self.site, "DataLoader"

    def apply(self, draft: Draft) -> None:
        """Put the data set into one that keeps what comes before the first random transform."""
        fixed = _fixed_transforms(draft)
        loader_dataset(self.trace, f"FixedOnce({{}}, fixed={fixed})").apply(draft)
        Definition(None, "FixedOnce", _FIXED_ONCE).apply(draft)

    def told(self, draft: Draft) -> str:
        """The loader's call."""
        return loader_dataset(self.trace, "").told(draft)


@dataclass(frozen=True)
class OpenOnce(Mend):
    """Files of torchvision's folder data sets, decoded once."""

    @property
    def words(self) -> str:
        """What to keep."""
        return (
            "decode each file once: @functools.lru_cache(maxsize=None) over the function that "
            "opens and decodes it"
        )

    def apply(self, draft: Draft) -> None:
        """Give every ImageFolder a loader that keeps its images."""
        calls = [
            one
            for one in draft.source.nodes
            if isinstance(one, ast.Call) and called(one) == "ImageFolder"
        ]
        if not calls or any(word.arg == "loader" for one in calls for word in one.keywords):
            raise CannotMend("the script opens its files by itself")
        draft.change([appended(draft, one, "loader=open_once") for one in calls])
        Definition(None, "open_once", _OPEN_ONCE, ("import functools", "import torchvision")).apply(
            draft
        )


def _fixed_transforms(draft: Draft) -> int:
    """How many transforms come before the first random one, in the one list that has such."""
    found = []
    for one in draft.source.nodes:
        if isinstance(one, ast.Call) and called(one) == "Compose" and one.args:
            steps = one.args[0].elts if isinstance(one.args[0], ast.List | ast.Tuple) else []
            names = [called(step) if isinstance(step, ast.Call) else "" for step in steps]
            chance = [at for at, name in enumerate(names) if is_random(name)]
            if chance:
                found.append(chance[0])
    if len(found) != 1:
        raise CannotMend(f"the script has {len(found) or 'no'} lists of random transforms")
    return found[0]
