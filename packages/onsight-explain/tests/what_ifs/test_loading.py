"""Workers of loaders, and JPEG files decoded at a reduced size."""

import pytest
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, RandomResizedCrop, Resize, ToTensor

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.process.items import examine_items
from onsight_explain.what_ifs.loading import PersistentWorkers, SmallerDecode, Workers


@pytest.mark.parametrize(
    ("loader", "waits", "counts"),
    [({"workers": 0}, 0.5, [1, 2, 4]), ({"workers": 2}, 0.0, [0, 1, 4]), ({"workers": 0}, 0.0, [])],
)
def test_tried_if_the_script_waits_or_has_workers(baseline, loader, waits, counts):
    found = Workers.candidates(baseline(loader=loader, waits=waits))
    assert [one.value for one in found] == counts


@pytest.mark.parametrize("workers", [0, 2])
def test_every_loader_gets_them(apply, numbers, workers):
    apply(workers=workers)
    loader = DataLoader(numbers(), 4, shuffle=True, num_workers=1, prefetch_factor=3)
    assert loader.num_workers == workers


@pytest.mark.parametrize(
    ("loader", "epochs", "count"),
    [
        ({"workers": 2}, 3, 1),
        ({"workers": 2}, 0, 0),
        ({"workers": 0}, 3, 0),
        ({"workers": 2, "is_persistent": True}, 3, 0),
    ],
)
def test_tried_if_workers_are_started_in_every_epoch(baseline, loader, epochs, count):
    assert len(PersistentWorkers.candidates(baseline(loader=loader, epochs=epochs))) == count


def test_loaders_with_workers_keep_them(apply, numbers):
    apply(persistent_workers=True)
    assert DataLoader(numbers(), 4, num_workers=2).persistent_workers
    assert not DataLoader(numbers(), 4).persistent_workers


LARGE = {"jpeg_side": 400, "resized_side": 100, "item_bytes": 10**9}


@pytest.mark.parametrize(
    ("item", "count"),
    [
        (LARGE, 1),
        (LARGE | {"jpeg_side": 150}, 0),
        (LARGE | {"resized_side": 0}, 0),
        (LARGE | {"item_bytes": 1, "seconds": 1e-6}, 0),  # it can be kept instead
        (LARGE | {"transform_share": 0.9}, 0),
    ],
)
def test_tried_for_large_files_that_cannot_be_kept(baseline, item, count):
    found = SmallerDecode.candidates(baseline(item=item, loader={"items": 10**6}))
    assert [one.value for one in found] == [100] * count


def test_files_are_decoded_at_a_fraction_of_their_size(apply, tmp_path):
    for suffix in ("jpg", "png"):
        Image.linear_gradient("L").resize((400, 320)).save(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / "a.jpg") as file:
        whole = file.resize((50, 40))
    apply(smaller_decode=60)
    with Image.open(tmp_path / "a.jpg") as small, Image.open(tmp_path / "a.png") as other:
        small.load()
        assert (small.size, other.size) == ((100, 80), (400, 320))
    pairs = zip(small.resize((50, 40)).tobytes(), whole.tobytes(), strict=True)
    assert max(abs(one - other) for one, other in pairs) < 20


class Files:
    def __init__(self, path, *steps):
        self.path, self.transform = path, Compose([*steps, ToTensor()])

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with Image.open(self.path) as image:
            return self.transform(image.convert("RGB"))


@pytest.mark.parametrize(
    ("step", "side"), [(Resize(32), 32), (RandomResizedCrop(32), 64), (ToTensor(), 0)]
)
def test_sides_of_files_and_of_what_becomes_of_them_are_seen(tmp_path, step, side):
    path = tmp_path / "a.jpg"
    Image.linear_gradient("L").resize((90, 70)).save(path)
    dataset = Files(path, step)
    dataset.transform.transforms = dataset.transform.transforms[: 2 if side else 1]
    facts = examine_items(dataset)
    assert (facts.jpeg_side, facts.resized_side) == (70, side)


def test_the_script_gets_a_loader_of_its_own(baseline, tmp_path):
    Image.linear_gradient("L").resize((400, 320)).save(tmp_path / "a.jpg")
    script = tmp_path / "train.py"
    script.write_text("import torch\n\ndata = ImageFolder(root)\n", encoding="utf-8")
    text = fix_script(script, SmallerDecode(60).fixes(baseline().trace)).after.decode()
    names = {"ImageFolder": lambda root, loader: loader, "root": ""}
    exec(text, names)
    assert names["data"](tmp_path / "a.jpg").size == (100, 80)
