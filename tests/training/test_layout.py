"""What is decoded for one network and for several; oracle: the images themselves, by hand."""

import numpy as np
import pytest
import torch
from PIL import Image
from prepared import make_job

from onsight.config import make_config
from onsight.config_files import read_config_file, save_config
from onsight.data.index import TRAIN
from onsight.deadline import Deadline
from onsight.training.layout import choose_layout, find_data
from onsight.training.open_data import open_data, select_candidate
from onsight.training.place import place
from onsight.tune import candidates

LITE0 = "tf_efficientnet_lite0"


@pytest.fixture(autouse=True)
def with_weights(monkeypatch):
    """Undoes the fixture of all tests that hides the installed weights."""
    monkeypatch.setattr(candidates, "offline_models", lambda: [LITE0])


@pytest.fixture
def tiles(tmp_path):
    """Grey images of 40x40 pixels in two classes, enough to train a network from scratch."""
    rng = np.random.default_rng(0)
    for kind in ("a", "b"):
        (tmp_path / "tiles" / kind).mkdir(parents=True)
        for number in range(130):
            pixels = rng.integers(0, 256, (40, 40), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "tiles" / kind / f"{number}.png")
    return tmp_path / "tiles"


def lay_out(data, **fields):
    job = make_job(deadline=Deadline(60.0))
    config = make_config(fields)
    return choose_layout(find_data(str(data), config, job), config, job), job


def test_networks_share_the_images_as_they_are(tiles):
    layout, job = lay_out(tiles, epochs=3)
    assert [candidate.name for candidate in layout.candidates] == ["head", "compact", "tuned"]
    assert layout.config.model == "auto"
    assert layout.image_size == (40, 40)
    assert layout.choices["model"].value == "head, compact and tuned"
    opened = open_data(layout, None, job)
    assert opened.dataset.pack.pixels.shape == (260, 40, 40, 1)
    decoded = opened.dataset.images.gather(torch.arange(4)).images
    inputs = []
    for candidate in layout.candidates:
        member = select_candidate(opened, candidate, candidate.apply(opened.config), job)
        assert member.config.epochs == 3
        assert member.dataset.input_shape == (1, *candidate.image_size)
        assert torch.equal(member.dataset.ids(TRAIN), opened.dataset.ids(TRAIN))
        placed = place(member, None, job)
        inputs.append(placed.data.normalization.apply(decoded))
    assert [tuple(images.shape[2:]) for images in inputs] == [(64, 64), (40, 40), (64, 64)]
    enlarged = torch.nn.functional.interpolate(
        decoded.permute(0, 3, 1, 2).float(), (64, 64), mode="bilinear", align_corners=False
    )
    assert torch.allclose(inputs[0], enlarged / 127.5 - 1, atol=1e-5)


def test_each_network_has_settings_of_its_own(tiles):
    layout, job = lay_out(tiles)
    opened = open_data(layout, None, job)
    head, compact, tuned = (
        select_candidate(opened, candidate, candidate.apply(opened.config), job)
        for candidate in layout.candidates
    )
    assert (tuned.config.model, tuned.config.freeze) == (LITE0, False)
    assert (head.config.crop_area, tuned.config.crop_area) == (1.0, 0.8)
    assert compact.config.learning_rate > tuned.config.learning_rate
    assert (compact.layout.fine_tuning, set(tuned.layout.fine_tuning)) == (
        {},
        {"layer_decay", "norm_statistics", "crop_area"},
    )


def test_settings_that_are_left_open_stay_open_in_the_saved_config(tiles, tmp_path):
    """Otherwise a resumed run would take the usual crops for the wish of the user."""
    layout, job = lay_out(tiles, crop_area=1.0, epochs=3)
    save_config(layout.config, tmp_path / "config.toml")
    again = make_config(read_config_file(tmp_path / "config.toml"))
    assert again == layout.config
    assert again.model_fields_set == layout.config.model_fields_set
    repeated = choose_layout(layout.source, again, job)
    assert repeated.candidates == layout.candidates


@pytest.mark.parametrize(
    ("fields", "name", "model", "size"),
    [
        ({"freeze": True}, "head", LITE0, (64, 64)),
        ({"residency": "stream"}, "compact", "compact", (40, 40)),
        ({"model": "lenet"}, "lenet", "lenet", (32, 32)),
        (
            {"model": "resnet18.a1_in1k", "image_size": "48"},
            "resnet18",
            "resnet18.a1_in1k",
            (48, 48),
        ),
    ],
)
def test_one_network_is_laid_out_as_if_it_had_been_named(tiles, fields, name, model, size):
    layout, _ = lay_out(tiles, **fields)
    (candidate,) = layout.candidates
    assert (candidate.name, candidate.share, candidate.image_size) == (name, 1.0, size)
    assert (layout.config.model, layout.image_size, layout.config.size) == (model, size, size)
