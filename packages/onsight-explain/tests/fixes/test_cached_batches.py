"""Fixed scripts whose batches are gathered: the same batches as before, augmented as a whole."""

import pytest
import torch
from torch.utils.data import TensorDataset

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.fixes.calls import remove_workers
from onsight_explain.fixes.datasets import (
    CacheFixedTransforms,
    cache_and_augment_batches,
    cache_batches,
    cache_items,
)
from onsight_explain.process.items import examine_items
from onsight_explain.script.trace import LoaderFacts, Trace
from onsight_explain.tracing.sites import Site

SCRIPT = """import torch
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.transforms.functional import to_pil_image

class Images(Dataset):
    def __init__(self):
        self.made = 0
        self.transform = transforms.Compose([STEPS])
    def __len__(self):
        return 6
    def __getitem__(self, index):
        self.made += 1
        image = torch.arange(48, dtype=torch.uint8).view(3, 4, 4) + index
        return self.transform(to_pil_image(image)), index

data = Images()
torch.manual_seed(1)
loader = DataLoader(data, 4, shuffle=True, num_workers=0)
epochs = [list(loader) for _ in range(2)]
"""
LINE = 1 + SCRIPT[: SCRIPT.index("loader = ")].count("\n")


def traced(path, line, data, **loader):
    facts = LoaderFacts(
        site=Site(file=str(path), line=line),
        batch_size=4,
        workers=0,
        is_pinned=False,
        is_persistent=False,
        is_shuffled=True,
        items=6,
        **loader,
    )
    return Trace(ended="window", startup_seconds=0, loader=facts, item=examine_items(data))


@pytest.fixture
def ran(tmp_path):
    """A function that runs a script with these transforms, and the same script fixed."""

    def run(steps, mends, dataset="data", **loader):
        path = tmp_path / "train.py"
        source = SCRIPT.replace("STEPS", steps).replace("DataLoader(data", f"DataLoader({dataset}")
        path.write_text(source, encoding="utf-8")
        plain: dict = {}
        exec(path.read_text(encoding="utf-8"), plain)
        trace = traced(path, LINE, plain["data"], **loader)
        mended = fix_script(path, mends(trace))
        assert [line.left for line in mended.lines] == [""] * len(mended.lines)
        after: dict = {}
        exec(mended.after.decode(), after)
        return plain, after

    return run


def same(plain, after):
    return all(
        torch.equal(one, other)
        for epochs in zip(plain["epochs"], after["epochs"], strict=True)
        for batches in zip(*epochs, strict=True)
        for one, other in zip(*batches, strict=True)
    )


def test_batches_are_gathered_from_items_made_once(ran):
    plain, after = ran("transforms.ToTensor()", lambda trace: cache_batches(trace, "cpu"))
    assert same(plain, after)
    assert after["data"].made == 6


@pytest.mark.parametrize("cache", [cache_batches, cache_items])
def test_a_class_is_defined_above_its_first_use(tmp_path, cache):
    """Although the imports go on below, as in cells of a notebook put together."""
    lines = [
        "import torch as t",  # the class needs torch by its own name
        "from torch.utils.data import DataLoader, TensorDataset",
        "data = TensorDataset(t.arange(6), t.arange(6))",
        "loader = DataLoader(data, 4)",
        "import torch.nn as nn",
        "class Net(nn.Module): ...",
    ]
    path = tmp_path / "train.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    trace = traced(path, 4, TensorDataset(torch.arange(6), torch.arange(6)))
    after: dict = {}
    exec(fix_script(path, cache(trace)).after.decode(), after)
    assert [images.tolist() for images, _ in after["loader"]] == [[0, 1, 2, 3], [4, 5]]


CERTAIN = (
    "transforms.Resize(4), transforms.RandomHorizontalFlip(1.0), transforms.RandomCrop(4), "
    "transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.2] * 3)"
)


@pytest.mark.parametrize("steps", [CERTAIN, "transforms.ToTensor(), transforms.RandomErasing(0)"])
def test_transforms_that_leave_no_choice_give_the_same_batches(ran, steps):
    plain, after = ran(steps, augment)
    images, _ = after["epochs"][0][0]
    assert images.dtype == torch.float32
    ordered = [
        torch.cat([labels for _, labels in one["epochs"][0]]).argsort() for one in (plain, after)
    ]
    batches = [torch.cat([images for images, _ in run["epochs"][0]]) for run in (plain, after)]
    assert torch.equal(batches[0][ordered[0]], batches[1][ordered[1]])
    assert after["data"].made == 6


def augment(trace):
    return cache_and_augment_batches(trace, trace.item.moved, "cpu")


def cache_fixed(trace):
    return [CacheFixedTransforms(trace.loader.site, trace), remove_workers(trace)]


FLIPPED = "transforms.Resize(4), transforms.RandomHorizontalFlip(1.0), transforms.ToTensor()"
FIXED = "transforms.Resize(4), transforms.CenterCrop(2), transforms.ToTensor()"


@pytest.mark.parametrize(
    ("mends", "steps"), [(augment, FLIPPED), (cache_fixed, FLIPPED), (cache_items, FIXED)]
)
def test_items_of_a_subset_are_made_once_by_the_transforms_of_its_data_set(ran, mends, steps):
    plain, after = ran(steps, mends, "Subset(Subset(data, range(5)), range(4))")
    assert same(plain, after)
    assert after["data"].made == 4
    assert len(after["data"].transform.transforms) == 3
