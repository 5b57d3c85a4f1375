"""Fixes of a dataset: cache its items, batches or decoded files in memory, or decode smaller."""

import ast
import inspect
import re
from dataclasses import dataclass

import torch

from onsight_explain.devices import free_memory_bytes
from onsight_explain.fixes.calls import (
    append_argument,
    loader_code,
    loader_keywords,
    remove_workers,
    wrap_dataset,
)
from onsight_explain.fixes.draft import CannotFix, Draft, called_name
from onsight_explain.fixes.fix import Advice, Fix, FixGroup
from onsight_explain.fixes.whole_file import AddDefinition
from onsight_explain.script import batched
from onsight_explain.script.augment_batches import is_random
from onsight_explain.script.trace import MovedSteps, Trace

# Code that is added to the user's script.

_CACHED_ITEMS = '''
class CachedItems:
    """The items of a dataset, made once and kept in memory."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.items = [dataset[index] for index in range(len(dataset))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __getitems__(self, indices):  # not that of a subset
        return [self[index] for index in indices]

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''

_CACHED_TRANSFORMS = '''
class CachedTransforms:
    """The items of a dataset; all transforms before the first random one are done only once."""

    def __init__(self, dataset, fixed):
        self.dataset = owner = dataset
        while getattr(owner, "transform", None) is None:
            owner = owner.dataset  # of a subset
        transform = owner.transform
        self.random = transform.transforms[fixed:]
        owner.transform = type(transform)(transform.transforms[:fixed])
        self.items = [dataset[index] for index in range(len(dataset))]
        owner.transform = transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, *others = self.items[index]
        for transform in self.random:
            image = transform(image)
        return image, *others

    def __getitems__(self, indices):  # not that of a subset
        return [self[index] for index in indices]

    def __getattr__(self, name):
        return getattr(self.dataset, name)
'''

_CACHED_BATCHES = '''
class CachedBatches:
    """The items of a dataset, made and stacked once; a batch is gathered from them by index."""

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
    """Items cached without their random transforms, which are applied to whole batches instead."""

    def __init__(self, dataset):
        self.dataset = owner = dataset
        while getattr(owner, "transform", None) is None:
            owner = owner.dataset  # of a subset
        transform = owner.transform
        self.steps = transform.transforms
        owner.transform = torchvision.transforms.Compose([{kept}])
        items = [dataset[index] for index in range(len(dataset))]
        owner.transform = transform
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

_OPEN_CACHED = '''
@functools.lru_cache(maxsize=None)
def open_cached(path):
    """A decoded image. Each file is read only the first time, and then kept in memory."""
    return torchvision.datasets.folder.default_loader(path)
'''

_OPEN_SMALLER = '''
def open_smaller(path):
    """A JPEG file, decoded at the smallest scale whose sides are at least {side} pixels."""
    with open(path, "rb") as file:
        image = PIL.Image.open(file)
        image.draft("RGB", ({side}, {side}))
        return image.convert("RGB")
'''


def cache_batches(trace: Trace, device: str = "cpu") -> list[Fix]:
    """Stack the training loader's items on a device; cache items one by one if they differ."""
    if not (trace.item and trace.item.stacks and trace.loader and trace.loader.is_collated):
        return cache_items(trace)
    code = _CACHED_BATCHES.replace("{to}", _to_device(device))
    definition = AddDefinition(trace.loader.site, "CachedBatches", code, ("import torch",))
    return _gather_batches(trace, device, definition)


def cache_items(trace: Trace) -> list[Fix]:
    """Make the training loader's items only once."""
    assert trace.loader
    definition = AddDefinition(trace.loader.site, "CachedItems", _CACHED_ITEMS)
    dataset = wrap_dataset(trace, "CachedItems({})")
    return _group_if_it_fits(trace, dataset, remove_workers(trace), definition)


def cache_and_augment_batches(trace: Trace, moved: MovedSteps, device: str) -> list[Fix]:
    """Stack the training loader's items without random transforms, and augment whole batches."""
    assert trace.loader
    kept = [f"self.steps[{number}]" for number in moved.kept] + moved.conversions
    lines = "\n".join(f"        images = {change}" for change in moved.changes)
    code = (
        _AUGMENTED_BATCHES.replace("{kept}", ", ".join(kept))
        .replace("{to}", _to_device(device))
        .replace("{changes}", lines)
    )
    code = "\n\n\n".join([*_sources_of_called(lines), code.strip()])
    needed = ("import torch", "import torchvision")
    definition = DefineAugmentedBatches(trace.loader.site, "AugmentedBatches", code, needed)
    return _gather_batches(trace, device, definition)


@dataclass(frozen=True)
class DefineAugmentedBatches(AddDefinition):
    """Adds the class that augments whole batches, and the functions that it calls."""

    instruction = "keep the items without their random transforms, and augment whole batches"


@dataclass(frozen=True)
class CacheFixedTransforms(Fix):
    """Applies the transforms before the first random one only once."""

    trace: Trace
    instruction = (
        "do only once what is not random: keep a list of (image, label) after the fixed "
        "transforms, and let the dataset apply the random ones to it"
    )

    @property
    def merge_key(self) -> object:
        return self.site, "DataLoader"

    def apply(self, draft: Draft) -> None:
        """Wrap the dataset in one that caches items before the first random transform."""
        fixed = _count_fixed_transforms(draft)
        wrap_dataset(self.trace, f"CachedTransforms({{}}, fixed={fixed})").apply(draft)
        AddDefinition(None, "CachedTransforms", _CACHED_TRANSFORMS).apply(draft)

    def summary(self, draft: Draft) -> str:
        return wrap_dataset(self.trace, "").summary(draft)


@dataclass(frozen=True)
class CacheDecodedFiles(Fix):
    """Decodes each file of torchvision's folder datasets only once."""

    instruction = (
        "decode each file once: @functools.lru_cache(maxsize=None) over the function that opens "
        "and decodes it"
    )

    def apply(self, draft: Draft) -> None:
        """Give every ImageFolder a loader that caches its images."""
        needed = ("import functools", "import torchvision")
        _set_folder_loader(draft, AddDefinition(None, "open_cached", _OPEN_CACHED, needed))


@dataclass(frozen=True)
class DecodeSmaller(Fix):
    """Decodes the JPEG files of torchvision's folder datasets at a reduced size."""

    side: int  # minimum side of the decoded images
    needs_site = False

    @property
    def instruction(self) -> str:
        return f'image.draft("RGB", ({self.side}, {self.side})) after Image.open'

    def apply(self, draft: Draft) -> None:
        """Give every ImageFolder a loader that decodes no more than it needs."""
        code = _OPEN_SMALLER.format(side=self.side)
        _set_folder_loader(draft, AddDefinition(None, "open_smaller", code, ("import PIL.Image",)))


def _group_if_it_fits(trace: Trace, *parts: Fix) -> list[Fix]:
    """Group fixes, if memory has room for two copies of all items, which stacking needs."""
    assert trace.loader
    needed = 2 * trace.item.item_bytes * (trace.loader.items or 0) if trace.item else 0
    if needed < free_memory_bytes(torch.device("cpu")):
        return [FixGroup(None, parts)]
    return [Advice(trace.loader.site, "keep the items in memory, on a machine with more of it")]


def _gather_batches(trace: Trace, device: str, definition: AddDefinition) -> list[Fix]:
    """Let the training loader gather its batches from a new dataset class."""
    keywords = loader_code(trace, collate_fn="list")
    pinning = [] if device == "cpu" else [loader_keywords(trace, pin_memory=None)]
    dataset = wrap_dataset(trace, f"{definition.name}({{}})")
    workers = remove_workers(trace)
    return _group_if_it_fits(trace, dataset, keywords, *pinning, workers, definition)


def _set_folder_loader(draft: Draft, definition: AddDefinition) -> None:
    """Let every ImageFolder open files with a new function. Raises CannotFix if it has its own."""
    folders = [call for call in draft.source.all(ast.Call) if called_name(call) == "ImageFolder"]
    has_own = any(keyword.arg == "loader" for call in folders for keyword in call.keywords)
    if not folders or has_own:
        raise CannotFix("the script opens its files by itself")
    draft.change([append_argument(draft, call, f"loader={definition.name}") for call in folders])
    definition.apply(draft)


def _count_fixed_transforms(draft: Draft) -> int:
    """Count the transforms before the first random one, in the only list with a random one."""
    counts: list[int] = []
    for call in draft.source.all(ast.Call):
        if called_name(call) == "Compose" and call.args:
            steps = call.args[0].elts if isinstance(call.args[0], ast.List | ast.Tuple) else []
            names = [called_name(step) if isinstance(step, ast.Call) else "" for step in steps]
            counts += [index for index, name in enumerate(names) if is_random(name)][:1]
    if len(counts) != 1:
        raise CannotFix(f"the script has {len(counts) or 'no'} lists of random transforms")
    return counts[0]


def _to_device(device: str) -> str:
    return "" if device == "cpu" else f'.to("{device}")'


def _sources_of_called(code: str) -> list[str]:
    """Return the source of the functions of `batched` that some code needs, in file order."""
    names = [name for name, _ in inspect.getmembers(batched, inspect.isfunction)]
    needed: list[str] = []

    def add_called(text: str) -> None:
        for name in names:
            if re.search(rf"\b{name}\(", text) and name not in needed:
                needed.append(name)
                add_called(inspect.getsource(getattr(batched, name)).partition("\n")[2])

    add_called(code)
    module_source = inspect.getsource(batched)
    needed.sort(key=lambda name: module_source.index(f"def {name}("))
    return [_without_annotations(inspect.getsource(getattr(batched, name))) for name in needed]


def _without_annotations(code: str) -> str:
    """Return a function without annotations, which name what the script may not import."""
    tree = ast.parse(code.strip())
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree).replace("F.", "torch.nn.functional.")
