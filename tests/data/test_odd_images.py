"""Every variant of an image gives the pixels that it means, and the same wherever it is read."""

import numpy as np
import pytest
from odd_images import odd_images

from onsight.config import make_config
from onsight.data.dataset import describe_problems, open_dataset
from onsight.data.decode import decode
from onsight.data.index import Problem
from onsight.data.pack import open_pack
from onsight.data.packing import PackJob
from onsight.data.sizes import make_format
from onsight.data.sources.find import find_source
from onsight.errors import ImageError
from onsight.inference.images import read_image

ALL = list(odd_images())


@pytest.mark.parametrize("odd", ALL, ids=[odd.name for odd in ALL])
def test_pixels_are_those_that_were_meant(odd):
    found = decode(odd.data)
    expected = odd.expected
    if odd.name == "png-grey-alpha-16":  # which Pillow opens as colour
        expected = np.repeat(expected, 3, axis=2)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= odd.tolerance


def test_there_are_thirty_variants_and_more():
    assert len({odd.name for odd in ALL}) == len(ALL) >= 45


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Over 200 files: each variant, and parts of it, which are images or broken."""
    folder = tmp_path_factory.mktemp("odd")
    for number, odd in enumerate(ALL):
        place = folder / ("even", "uneven")[number % 2]
        place.mkdir(exist_ok=True)
        for part, share in enumerate((1.0, 0.95, 0.7, 0.3)):
            (place / f"{odd.name}-{part}.bin").write_bytes(odd.data[: int(share * len(odd.data))])
    return folder


def by_source_row(pack):
    """The pixels of each usable row of the source; the pack has its own order."""
    return {row: pack.pixels[at] for row, at in zip(pack.sources, pack.rows, strict=True)}


@pytest.mark.parametrize("channels", [1, 3])
def test_training_evaluation_and_prediction_see_the_same_pixels(files, channels):
    source = find_source(str(files))
    assert len(source.index) >= 200
    config = make_config({"validation_fraction": 0.2, "test_fraction": 0.2})
    dataset = open_dataset(source, config, (20, 28), None, 1)
    size = make_format(config, (20, 28), (20, 28))
    size = type(size)(**{**vars(dataset.format), "channels": channels})
    job = PackJob(source, size, threads=2)
    pack = open_pack(job, None)
    packed, trained = by_source_row(pack), by_source_row(dataset.pack)
    assert sorted(trained) == sorted(packed)
    assert 40 < len(packed) < len(source.index)
    for row, locator in enumerate(source.index.locators):
        path = files / locator
        if row not in packed:
            for given in (path, path.read_bytes()):
                with pytest.raises(ImageError):
                    read_image(given, size)
            continue
        if channels == dataset.format.channels:
            assert np.array_equal(trained[row], packed[row])
        for given in (path, str(path), path.read_bytes()):
            assert np.array_equal(read_image(given, size), packed[row])


def test_problems_are_counted_by_reason_and_none_is_forgotten():
    many = [Problem(f"fox/{number}.png", "scan", "unknown class") for number in range(2_000)]
    single = [Problem(f"{letter}.heic", "decode", f"reason {letter}") for letter in "abcdefgh"]
    lines = [*describe_problems([*many, *single])]
    assert lines[0] == "2,000 not used: unknown class"
    assert lines[1] == "not used: a.heic: reason a"
    assert lines[5:] == ["4 more not used, for other reasons"]
    assert (
        len([*describe_problems(single[:6])]) == 6
    )  # one more line takes no more room than "1 more"
