"""Oracles: the decoder that prediction uses, and Pillow's own resize of the same window."""

import math
import shutil
import threading
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from onsight.config import make_config
from onsight.data.augmentation_ops import AREA, CROP_X, CROP_Y, RATIO
from onsight.data.dataset import open_dataset
from onsight.data.decode import decode, prepare_image
from onsight.data.fit import ImageFormat
from onsight.data.index import TRAIN
from onsight.data.loader import Loader
from onsight.data.sources.find import find_source
from onsight.data.stream import CropWindow, StreamedImages, crop_image
from onsight.errors import DataError
from onsight.randomness import uniform

CPU = torch.device("cpu")
SIZE = (48, 40)


def photo(rng, height, width):
    """A smooth colour image, whose windows hardly depend on how they are resampled."""
    rough = rng.integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """30 JPEGs of three sizes and a PNG in two classes."""
    folder, rng = tmp_path_factory.mktemp("stream") / "photos", np.random.default_rng(3)
    for number in range(30):
        path = folder / ("cat" if number % 2 else "dog") / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(rng, *[(120, 160), (160, 120), (500, 420)][number % 3]).save(path, quality=95)
    photo(rng, 90, 80).save(folder / "dog" / "last.png")
    return folder


def opened(data, threads=1, size=SIZE, **fields):
    config = make_config({"residency": "stream", **fields})
    return open_dataset(find_source(str(data)), config, size, None, threads)


def content_of(data, dataset, number):
    return (data / dataset.pack.index.locators[number]).read_bytes()


def test_evaluation_sees_what_prediction_prepares(photos):
    dataset = opened(photos, crop_area=0.3)
    assert isinstance(dataset.images, StreamedImages)
    assert dataset.input_shape == (3, *SIZE)
    loader = Loader(dataset.images, torch.arange(31), 7, CPU)
    for batch in loader.in_order():
        for image, label, number in zip(*batch[:3], strict=True):
            expected = prepare_image(content_of(photos, dataset, number), dataset.format)[1]
            assert np.array_equal(image, expected)
            name = dataset.classes[label]
            assert dataset.pack.index.locators[int(number)].startswith(f"{name}/")


def test_for_an_accelerator_images_are_decoded_into_locked_memory(photos, monkeypatch):
    locked, real = set(), torch.empty

    def empty(*size, pin_memory=False, **named):
        tensor = real(*size, **named)
        if pin_memory:
            locked.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    images = opened(photos).images
    plain, sent = (
        next(images.batches([torch.arange(9)], None, pinned=asked)) for asked in (False, True)
    )
    assert torch.equal(plain.images, sent.images)
    assert (plain.images.data_ptr() in locked, sent.images.data_ptr() in locked) == (False, True)


def test_the_split_is_that_of_packed_images(photos):
    size = (96, 80)  # larger than thumbnails, and small enough for JPEGs to be decoded smaller
    streamed, packed = opened(photos, size=size), opened(photos, size=size, residency="map")
    assert streamed.pack.pixels.shape[1:3] == (64, 53)
    assert np.array_equal(streamed.pack.digests, packed.pack.digests)
    assert np.array_equal(streamed.splits, packed.splits)
    assert list(streamed.pack.index.locators) == list(packed.pack.index.locators)
    assert streamed.format == packed.format


def test_without_crops_an_epoch_is_bit_equal_to_the_packs(photos):
    epochs = [
        list(
            Loader(opened(photos, residency=residency).images, torch.arange(31), 8, CPU).epoch(1, 2)
        )
        for residency in ("stream", "map")
    ]
    for streamed, packed in zip(*epochs, strict=True):
        assert all(map(torch.equal, streamed[:4], packed[:4]))


def reference_window(numbers, least_area):
    """A random-resized crop in plain Python: (top, left, height, width) as shares."""
    area = least_area + (1 - least_area) * numbers[AREA]
    ratio = math.exp(math.log(4 / 3) * (2 * numbers[RATIO] - 1))
    height, width = min(1, math.sqrt(area / ratio)), min(1, math.sqrt(area * ratio))
    return (1 - height) * numbers[CROP_Y], (1 - width) * numbers[CROP_X], height, width


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_training_crops_are_those_of_the_drawn_numbers(photos, fit):
    dataset = opened(photos, crop_area=0.3, fit=fit, background="#204060")
    loader = Loader(dataset.images, torch.arange(31), 8, CPU)
    columns, differences = [AREA, RATIO, CROP_Y, CROP_X], []
    for batch in loader.epoch(5, 3):
        drawn = uniform(5, 3, batch.ids, columns)
        for image, number, row in zip(batch.images, batch.ids.tolist(), drawn, strict=True):
            numbers = dict(zip(columns, row.tolist(), strict=True))
            top, left, height, width = reference_window(numbers, 0.3)
            whole = decode(content_of(photos, dataset, number))
            shown = Image.fromarray(framed(whole, fit))
            box = (left * shown.width, top * shown.height)
            box += (box[0] + width * shown.width, box[1] + height * shown.height)
            expected = np.asarray(shown.resize(SIZE[::-1], Image.Resampling.BILINEAR, box=box))
            differences.append(np.abs(expected.astype(int) - image.numpy()).mean())
    assert len(differences) == 31
    assert max(differences) < 10  # grey values, at windows rounded to half a pixel; others: 20
    assert np.mean(differences) < 3


def framed(pixels, fit):
    """The part of an image that a fit to 48x40 shows, at its own scale."""
    height, width = pixels.shape[:2]
    if fit == "stretch":
        return pixels
    if fit == "crop":
        tall, wide = min(height, round(width * 1.2)), min(width, round(height / 1.2))
        top, left = (height - tall) // 2, (width - wide) // 2
        return pixels[top : top + tall, left : left + wide]
    tall, wide = max(height, round(width * 1.2)), max(width, round(height / 1.2))
    frame = np.full((tall, wide, 3), (0x20, 0x40, 0x60), np.uint8)
    top, left = (tall - height) // 2, (wide - width) // 2
    frame[top : top + height, left : left + width] = pixels
    return frame


@pytest.mark.parametrize("channels", [1, 3])
def test_the_whole_as_a_window_is_within_one_of_pillow(channels):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (90, 130, channels), np.uint8)
    cropped = crop_image(pixels, CropWindow(1, 1, 0, 0), ImageFormat(*SIZE, channels))
    image = Image.fromarray(pixels if channels == 3 else pixels[:, :, 0])
    expected = np.asarray(image.resize(SIZE[::-1], Image.Resampling.BILINEAR))
    assert cropped.shape == (*SIZE, channels)
    assert np.abs(expected.reshape(cropped.shape).astype(int) - cropped).max() <= 1


@pytest.mark.parametrize("centre", [-0.5, 0.0, 0.5])
def test_a_window_of_a_ramp_has_its_grey_values(centre):
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[:, None, None], 10, axis=1)
    cropped = crop_image(ramp, CropWindow(0.25, 1, centre, 0), ImageFormat(8, 10, 1))
    expected = (np.arange(8) + 0.5) * 8 - 0.5 + 255 * 0.75 * (centre / 0.75 + 1) / 2
    assert np.abs(cropped[:, 0, 0] - expected).max() <= 2


def test_a_window_of_a_pixel_or_less_is_a_pixel():
    pixels = np.zeros((3, 3, 1), np.uint8)
    for centre in (-1.0, 1.0):
        window = CropWindow(0.01, 0.01, centre * 0.99, centre * 0.99)
        assert crop_image(pixels, window, ImageFormat(4, 4, 1)).shape == (4, 4, 1)


def test_a_image_is_decoded_no_smaller_than_its_window_needs(photos, monkeypatch):
    sizes = []

    def spy(*args, **more):
        sizes.append(decode(*args, **more).shape[:2])
        return decode(*args, **more)

    monkeypatch.setattr("onsight.data.stream.decode", spy)
    data = (photos / "dog" / "02.jpg").read_bytes()  # 500 x 420
    for share, height in [(1.0, 63), (0.8, 63), (0.7, 125), (0.2, 250), (0.15, 500)]:
        crop_image(data, CropWindow(share, share, 0, 0), ImageFormat(*SIZE, 3))
        assert sizes.pop()[0] == height


def all_bits(data, threads, **fields):
    images = opened(data, threads, crop_area=0.4, **fields).images
    batches = Loader(images, torch.arange(31), 9, CPU).epoch(2, 1)
    return torch.cat([batch.images for batch in batches])


def test_threads_and_containers_change_no_bit(photos, tmp_path):
    alone = all_bits(photos, 1)
    assert torch.equal(all_bits(photos, 4), alone)
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", photos)
    assert zipfile.is_zipfile(archive)
    assert torch.equal(all_bits(archive, 2), alone)


def test_an_epoch_goes_on_from_a_step_and_shares_make_the_batch(photos):
    images = opened(photos, crop_area=0.4).images
    ids = torch.arange(31)
    whole = list(Loader(images, ids, 9, CPU).epoch(2, 1))
    rest = list(Loader(images, ids, 9, CPU).epoch(2, 1, 2))
    assert all(torch.equal(a.images, b.images) for a, b in zip(rest, whole[2:], strict=True))
    shares = zip(*(Loader(images, ids, 9, CPU, n, 2).epoch(2, 1) for n in (0, 1)), strict=True)
    for batch, parts in zip(whole, shares, strict=True):
        assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
        assert all(torch.equal(part.global_labels, batch.labels) for part in parts)


def stream_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("stream")]


def test_stopping_early_leaves_no_thread_and_few_images_read_ahead(photos):
    dataset = opened(photos, 2)
    read = []
    source = dataset.images.source
    counting = type(source)(
        **{**vars(source), "read": lambda row: (read.append(row), source.read(row))[1]}
    )
    images = type(dataset.images)(**{**vars(dataset.images), "source": counting})
    batches = Loader(images, torch.arange(31), 3, CPU).epoch(0, 0)
    next(batches)
    assert stream_threads()
    while len(read) < 9:  # the batch in hand and two more
        time.sleep(0.01)
    time.sleep(0.2)
    batches.close()
    assert not stream_threads()
    assert len(read) == 9


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_a_image_that_is_lost_meanwhile_is_named(photos, tmp_path, how):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    dataset = opened(data, 2)
    lost = dataset.pack.index.locators[12]
    if how == "gone":
        (data / lost).unlink()
    else:
        (data / lost).write_bytes(b"\xff\xd8\xff no image")
    loader = Loader(dataset.images, dataset.ids(TRAIN), 4, CPU)
    if 12 not in dataset.ids(TRAIN):
        loader = Loader(dataset.images, torch.arange(31), 4, CPU)
    with pytest.raises(DataError, match=f"{lost}: .*when the run began"):
        list(loader.epoch(0, 0))
    assert not stream_threads()


def test_plain_pixels_stream_too():
    dataset = open_dataset(
        find_source("random-vectors"),
        make_config({"residency": "stream", "crop_area": 0.5}),
        (16, 16),
        None,
        1,
    )
    batch = dataset.images.gather(torch.arange(4))
    assert batch.images.shape[1:] == dataset.images.shape
