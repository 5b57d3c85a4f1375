"""torchvision's decode_jpeg is replaced by Pillow, a little off, and asked as nvJPEG would be.

Oracles: Pillow's own resize of the same window, and the stream that decodes on the CPU.
"""

import io

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode

from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.loader import Loader
from onsight.data.sources.find import find_source
from onsight.data.stream_on_gpu import StreamOnGpu
from onsight.errors import DeviceError

CPU = torch.device("cpu")
SIZE = (48, 40)
OFF = 3  # grey levels
ODD = ("turned.jpg", "cmyk.jpg", "plain.png")
DAMAGED = "damaged.jpg"


def photo(rng, height, width):
    rough = rng.integers(10, 240, (5, 6, 3), np.uint8)
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """12 plain JPEGs of two sizes, a damaged one, and three that nvJPEG cannot take."""
    folder, rng = tmp_path_factory.mktemp("gpu") / "photos", np.random.default_rng(3)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
    for number in range(12):
        size = [(120, 160), (160, 120)][number % 2]
        photo(rng, *size).save(folder / "cat" / f"{number:02d}.jpg", quality=95)
    turned = Image.Exif()
    turned[0x0112] = 6
    photo(rng, 90, 80).save(folder / "dog" / ODD[0], exif=turned)
    photo(rng, 90, 80).convert("CMYK").save(folder / "dog" / ODD[1])
    photo(rng, 90, 80).save(folder / "dog" / ODD[2])
    buffer = io.BytesIO()
    photo(rng, 90, 80).save(buffer, "JPEG", comment=b"nvJPEG fails here")
    (folder / "dog" / DAMAGED).write_bytes(buffer.getvalue())
    return folder


@pytest.fixture
def asked(monkeypatch):
    """How many pictures were in each call of decode_jpeg."""
    calls = []

    def decode_jpeg(encoded, mode, device):
        calls.append(len(encoded))
        assert device == CPU  # in place of cuda
        assert all(one.dtype == torch.uint8 and one.ndim == 1 for one in encoded)
        pictures = [Image.open(io.BytesIO(one.numpy().tobytes())) for one in encoded]
        assert all(one.mode == "RGB" and 0x0112 not in one.getexif() for one in pictures)
        if any("comment" in one.info for one in pictures):
            raise RuntimeError("nvjpegDecode failed")
        assert mode in (ImageReadMode.RGB, ImageReadMode.GRAY)
        pictures = [one.convert("L" if mode == ImageReadMode.GRAY else "RGB") for one in pictures]
        arrays = [np.atleast_3d(np.minimum(one, 255 - OFF) + np.uint8(OFF)) for one in pictures]
        return [torch.from_numpy(one).permute(2, 0, 1) for one in arrays]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode_jpeg)
    return calls


def opened(data, **fields):
    config = make_config({"residency": "stream", "channels": "3", **fields})
    dataset = open_dataset(find_source(str(data)), config, SIZE, None, 2)
    return dataset, StreamOnGpu(dataset.pictures, CPU)


def by_name(dataset, pictures, batch_size=5):
    """The pictures of a training epoch by name, after labels and order are checked."""
    ids = torch.arange(len(dataset.splits))
    loaders = [Loader(one, ids, batch_size, CPU) for one in (pictures, dataset.pictures)]
    found = {}
    for ours, theirs in zip(*(one.epoch(1, 2) for one in loaders), strict=True):
        assert all(map(torch.equal, ours[1:4], theirs[1:4]))
        for number, mine, reference in zip(ours.ids, ours.images, theirs.images, strict=True):
            found[dataset.pack.index.locators[int(number)]] = mine.int(), reference.int()
    return found


@pytest.mark.parametrize(
    "fields",
    [{}, {"fit": "crop"}, {"crop_area": 0.4}, {"fit": "crop", "crop_area": 0.4}],
    ids=["whole", "centre", "crops", "crops of the centre"],
)
def test_training_batches_are_those_of_the_cpu_but_for_the_decoder(photos, asked, fields):
    dataset, pictures = opened(photos, **fields)
    found = by_name(dataset, pictures)
    assert len(found) == 16
    for name, (mine, reference) in found.items():
        if name.startswith("cat"):
            # The CPU decodes large ones at half the size, where a window's edges are others.
            assert (mine - reference - OFF).float().abs().mean() < 5, name
        else:
            assert mine.equal(reference), name
    assert max(asked) == 5


def test_pictures_are_resized_as_pillow_does(photos, asked):
    dataset, pictures = opened(photos)
    for name, (mine, _) in by_name(dataset, pictures).items():
        if name.startswith("cat"):
            image = np.minimum(Image.open(photos / name), 255 - OFF) + np.uint8(OFF)
            resized = Image.fromarray(image).resize(SIZE[::-1], Image.Resampling.BILINEAR)
            assert np.abs(mine.numpy() - np.asarray(resized, int)).max() <= 1


def test_grey_pictures_are_asked_for_as_such(photos, asked):
    dataset, pictures = opened(photos, channels="1")
    for name, (mine, reference) in by_name(dataset, pictures).items():
        assert mine.shape == (*SIZE, 1)
        assert abs((mine - reference).float().mean() - OFF * name.startswith("cat")) < 1


def test_what_is_judged_is_decoded_by_the_cpu(photos, asked):
    dataset, pictures = opened(photos)
    ids = torch.arange(16)
    batches = [list(Loader(one, ids, 5, CPU).in_order()) for one in (pictures, dataset.pictures)]
    for ours, theirs in zip(*batches, strict=True):
        assert all(map(torch.equal, ours[:4], theirs[:4]))
    assert asked == []


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("torchvision not compiled with nvJPEG support", DeviceError),
        ("CUDA out of memory", RuntimeError),
    ],
)
def test_what_is_no_pictures_fault_ends_the_run(photos, monkeypatch, said, kind):
    def decode_jpeg(encoded, mode, device):
        raise RuntimeError(said)

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode_jpeg)
    dataset, pictures = opened(photos)
    with pytest.raises(kind, match=said):
        by_name(dataset, pictures)


def test_the_real_decoder_gives_nearly_the_same_pictures(photos):
    """torchvision's own, on the CPU: this is how it is called, and its warning is kept back."""
    dataset, pictures = opened(photos)
    for name, (mine, reference) in by_name(dataset, pictures).items():
        assert (mine - reference).abs().max() <= 6, name
