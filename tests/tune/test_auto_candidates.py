"""What `--model auto` trains, by hand from the table of nominal costs."""

import io
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from onsight.config import make_config
from onsight.data.index import TEST, TRAIN, UNSPLIT, Index, TextColumn
from onsight.data.sources.source import Source
from onsight.tune import candidates, work
from onsight.tune.candidates import choose_candidates
from onsight.tune.input_size import (
    choose_freezing,
    choose_input_size,
    choose_shared_size,
    list_pretrained_sizes,
)
from onsight.tune.work import count_decodable, decoding_seconds, training_seconds

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
NORMAL = {"effort": "normal"}
LITE0 = "tf_efficientnet_lite0"


@pytest.fixture(autouse=True)
def with_weights(monkeypatch):
    """Undoes the fixture of all tests that hides the installed weights; CPUs compute in bf16."""
    monkeypatch.setattr(candidates, "offline_models", lambda: [LITE0])
    monkeypatch.setattr(work, "has_native_bf16", lambda: True)


def make_source(images, test, shape, classes, is_encoded=False):
    """Images of one shape (H, W, C), so many without a split and so many of a given test split."""
    count = images + test
    splits = np.full(count, TRAIN if test else UNSPLIT, np.int8)
    splits[images:] = TEST
    labels = np.arange(count, dtype=np.int32) % classes
    locators, names = TextColumn.of(map(str, range(count))), [f"c{k}" for k in range(classes)]
    index = Index.of_columns(locators, labels, names, splits)
    content = np.zeros(shape, np.uint8)
    if is_encoded:
        file = io.BytesIO()
        Image.fromarray(content).save(file, "png")
        content = file.getvalue()
    return Source("folder", Path("images"), index, lambda row: content, "fingerprint", "")


CLOTHES = (60_000, 10_000, (28, 28, 1), 10)
ICONS = (5_664, 1_906, (64, 64, 3), 9)
FEW_PHOTOS = (748, 0, (375, 500, 3), 10)
DIGITS = (1_797, 0, (8, 8, 1), 10)
FEW_CLOTHES = (600, 0, (28, 28, 1), 10)
MANY_PHOTOS = (50_000, 0, (375, 500, 3), 100)


CLIP_ART = (1_980, 239, (373, 373, 3), 10, True)


def limit(time):
    """The field that limits the time of a run: a budget in seconds, or an effort."""
    return {"effort": time} if isinstance(time, str) else {"budget": f"{time}s"}


def summarise(chosen):
    """The names and sides, such as head 128, sprint 64."""
    return ", ".join(f"{candidate.name} {candidate.image_size[0]}" for candidate in chosen)


@pytest.mark.parametrize(
    ("images", "device", "budget", "expected"),
    [
        (CLOTHES, CPU, 30, "sprint 28"),
        (CLOTHES, CPU, 60, "sprint 28"),  # features of a third of them take 39 of the 50 s
        (CLOTHES, CPU, 300, "head 64, sprint 28"),
        (CLOTHES, CPU, "quick", "sprint 28"),
        (CLOTHES, CPU, "normal", "head 64, sprint 28"),
        (CLOTHES, CPU, "best", "head 64, compact 28"),
        (CLOTHES, CUDA, 60, "head 64, compact 28"),
        (ICONS, CPU, 15, "sprint 64"),  # features of a third of them take more than 3 of the 7.5 s
        (ICONS, CPU, 30, "head 64, sprint 64"),
        (ICONS, CPU, 60, "head 96, sprint 64"),
        (ICONS, CPU, 300, "head 128, compact 64"),  # at most twice the images' side
        (ICONS, CPU, "normal", "head 128, compact 64"),
        (ICONS, CPU, "best", "head 128, compact 64, tuned 64"),
        (ICONS, CUDA, 60, "head 128, compact 64, tuned 96"),
        (FEW_PHOTOS, CPU, 30, "head 192"),
        (FEW_PHOTOS, CPU, 60, "head 288"),
        (FEW_PHOTOS, CPU, 180, "head 288"),  # not 25 epochs of compact in a quarter of the time
        (FEW_PHOTOS, CPU, 300, "head 288, compact 128"),
        (FEW_PHOTOS, CPU, "quick", "head 192"),
        (FEW_PHOTOS, CPU, "normal", "head 288"),
        (FEW_PHOTOS, CPU, "best", "head 288, tuned 128, compact 128"),
        (FEW_PHOTOS, CUDA, 30, "head 288, compact 128"),  # tuned at 64x64 would be worse
        (FEW_PHOTOS, CUDA, 60, "head 288, tuned 128, compact 128"),
        (CLIP_ART[:-1], CPU, 30, "head 192"),
        (CLIP_ART, CPU, 30, "head 160"),  # 4.4 s to decode
        (DIGITS, CPU, 30, "head 64, sprint 8"),  # the fits of five folds fit in
        (DIGITS, CPU, 60, "head 64, sprint 8"),
        (DIGITS, CPU, "normal", "head 64, compact 8"),
        (FEW_CLOTHES, CPU, 30, "head 64, sprint 28"),
        (FEW_CLOTHES, CPU, 60, "head 64, sprint 28"),
        (FEW_CLOTHES, CPU, "normal", "head 64, compact 28"),  # 60 epochs of six trainings
        (MANY_PHOTOS, CPU, 60, "sprint 64"),
        (MANY_PHOTOS, CPU, 300, "head 128, sprint 64"),
        (MANY_PHOTOS, CPU, "normal", "head 64, sprint 64"),
        (MANY_PHOTOS, CUDA, "best", "head 288, compact 128, tuned 192"),
    ],
)
def test_the_table_decides(images, device, budget, expected, monkeypatch):
    monkeypatch.setattr("onsight.data.split.ENOUGH_TEST_IMAGES", 200)  # as in use
    source, config = make_source(*images), make_config(limit(budget))

    def refuse():
        raise AssertionError("the choice must not depend on the clock")

    for clock in ("time", "monotonic", "perf_counter", "process_time"):
        monkeypatch.setattr(time, clock, refuse)
    chosen = choose_candidates(source, config, device)
    assert summarise(chosen) == expected
    assert sum(candidate.share for candidate in chosen) <= 1 + 1e-9


def test_shares_follow_nominal_times():
    head, compact = choose_candidates(make_source(*ICONS), make_config(limit(300)), CPU)
    # 5,098 images in two views and 2,472 to evaluate, at 128x128 (2.9 ms each), and fits; a hidden
    # layer is fitted twice, in 20 epochs of 20 batches, each image in one of its views.
    seconds = 12_668 * 2.9e-3 + 1.5 + 10_196 * 9 * 6e-6 + 2 * 400 * 0.015
    assert head.seconds == pytest.approx(seconds)
    assert head.share == pytest.approx(1.5 * seconds / 290)
    # The split by digest may have a few more for training, which keep their mirror images.
    assert head.fields["head_images"] == pytest.approx(1.1 * 10_196, abs=1)
    assert compact.share == pytest.approx(1 - head.share)
    assert compact.seconds == pytest.approx(60 * 5_098 * 570e-6)  # as many epochs as help


def test_a_head_of_many_images_is_fitted_on_some_of_them():
    head, sprint = choose_candidates(make_source(*CLOTHES), make_config(NORMAL), CPU)
    # A quarter of 230 s, for 1.4 ms an image and 60 us a fit; 16,000 images are only evaluated.
    fitted = int((57.5 - 16_000 * 1.4e-3 - 1.5) / 1.46e-3)
    assert head.fields["head_images"] == pytest.approx(fitted, abs=1)
    assert sprint.epochs == int(0.75 * 230 / (54_000 * 214.84375e-6))


def test_fine_tuning_and_networks_from_scratch_share_what_few_large_images_leave():
    head, tuned, compact = choose_candidates(
        make_source(*FEW_PHOTOS), make_config({"effort": "best", "folds": "1"}), CPU
    )
    assert compact.share == 0.25
    assert tuned.share == pytest.approx(0.75 - head.share)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"freeze": True}, "head 128"),
        ({"freeze": False}, "compact 64, tuned 128"),
        ({"pretrained": True}, "head 128, tuned 128"),
        ({"pretrained": False}, "compact 64"),
        ({"weights": "lite0.safetensors"}, "head 128, tuned 128"),
        ({"image_size": "80"}, "head 80, compact 80, tuned 80"),
        ({"loss": "mse"}, "compact 64"),
        ({"residency": "stream"}, "compact 64"),
        ({"residency": "stream", "pretrained": True}, "tuned 128"),
        ({"train_images": 199, "validation_fraction": 0.0}, "head 128"),
        ({"train_images": 200, "validation_fraction": 0.0}, "head 128, compact 64, tuned 128"),
    ],
)
def test_settings_of_the_user_are_kept(fields, expected):
    config = make_config(fields)
    chosen = choose_candidates(make_source(*ICONS), config, CUDA)
    assert summarise(chosen) == expected
    for candidate in chosen:
        settled = candidate.apply(config)
        assert settled.model in (LITE0, "compact")
        assert all(getattr(settled, name) == value for name, value in fields.items())


@pytest.mark.parametrize("images", [FEW_PHOTOS, (100, *FEW_PHOTOS[1:])])
def test_a_limit_on_the_time_per_image_leaves_a_small_network(images, monkeypatch):
    monkeypatch.setattr("onsight.data.split.ENOUGH_TEST_IMAGES", 200)
    names = [
        [candidate.name for candidate in choose_candidates(make_source(*images), config, CPU)]
        for config in (make_config(limit(60)), make_config({**limit(60), "max_ms_per_image": 5.0}))
    ]
    small = {"sprint", "compact"}
    assert not small & set(names[0])
    assert small & set(names[1])


def test_a_size_set_by_the_user_does_not_replace_the_head_by_a_worse_network():
    config = make_config({"image_size": "208", **limit(30)})  # features take longer than there is
    chosen = choose_candidates(make_source(*CLIP_ART), config, CPU)
    assert summarise(chosen) == "head 208"


def test_candidates_differ_in_where_they_start():
    head, scratch, tuned = (
        one.apply(make_config({"epochs": 3}))
        for one in choose_candidates(make_source(*ICONS), make_config({}), CUDA)
    )
    assert (head.model, head.pretrained, head.freeze) == (LITE0, True, True)
    assert (scratch.model, scratch.pretrained, scratch.freeze) == ("compact", False, False)
    assert (tuned.model, tuned.pretrained, tuned.freeze) == (LITE0, True, False)
    assert {head.epochs, scratch.epochs, tuned.epochs} == {3}


def test_without_installed_weights_one_network_is_trained_from_scratch(monkeypatch):
    monkeypatch.setattr(candidates, "offline_models", list)
    chosen = choose_candidates(make_source(*ICONS), make_config(limit(60)), CPU)
    assert summarise(chosen) == "sprint 64"
    assert chosen[0].share == 1


@pytest.mark.parametrize(
    ("side", "largest", "smallest", "expected"),
    [
        (500, 224, 64, [224, 192, 160, 128, 96, 64]),
        (500, 260, 96, [260, 256, 224, 192, 160, 128, 96]),
        (50, 224, 64, [96, 64]),
        (8, 224, 64, [64]),
        (8, 80, 96, [80]),
    ],
)
def test_inputs_are_at_most_twice_the_images(side, largest, smallest, expected):
    sizes = list_pretrained_sizes(side, largest, smallest)
    assert sizes == [(side, side) for side in expected]


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        ((28, 40, 1), [(64, 64), (28, 40)], (28, 40)),  # as they are
        ((100, 100, 3), [(192, 192), (64, 64)], (100, 100)),
        ((375, 500, 3), [(192, 192), (64, 64)], (192, 192)),
    ],
)
def test_shared_images_are_never_enlarged(shape, sizes, expected):
    source = make_source(100, 0, shape, 2)
    assert choose_shared_size(source, make_config({}), sizes).value == expected
    asked = make_config({"image_size": "50"})
    assert choose_shared_size(source, asked, sizes).value == (50, 50)


def test_decoding_takes_as_long_as_for_images_of_the_average_area():
    small, large = (make_source(1, 0, (side, side, 3), 1, True).read(0) for side in (64, 640))
    source = make_source(256, 0, (64, 64, 3), 2, is_encoded=True)
    source = replace(source, read=lambda row: small if row % 4 else large)
    # Three of four are the unit of the table, and the fourth is a hundred of it.
    assert decoding_seconds(source) == pytest.approx(256 * (300 + 50 * 103 / 4) / 1e6)


@pytest.mark.parametrize(
    ("free", "held_out", "seconds", "expected"),
    [
        (1_000, 0, 60, 1_050),  # more than there are
        (1_000, 0, 30, 525),  # 35% of 30 s, at 20 ms each
        (1_000, 200, 30, 325),  # after those that are held out
        (1_000, 500, 30, 262),  # half of the time is for others all the same
        (1, 600, 3, 26),
    ],
)
def test_images_to_train_on_are_decoded_after_those_held_out(
    monkeypatch, free, held_out, seconds, expected
):
    monkeypatch.setattr(work, "_FIXED_DECODING", 20_000.0)
    monkeypatch.setattr(work, "_DECODING", 0.0)
    source = make_source(free, held_out, (64, 64, 3), 1, is_encoded=True)
    assert count_decodable(source, make_config(limit(seconds))) == expected


@pytest.mark.parametrize(
    ("seconds", "decoding", "expected"),
    [(180, 20, 150), (30, 7, 15), (15, 0, 7.5), (15, 5, 1.5), (15, 60, 1.5)],
)
def test_a_time_that_is_too_short_for_decoding_leaves_little_for_training(
    seconds, decoding, expected
):
    assert training_seconds(seconds, decoding) == pytest.approx(expected)


@pytest.mark.parametrize(("large_every", "expected"), [(3, 288), (5, 224)])
def test_a_head_has_a_larger_input_if_a_quarter_of_the_images_have_the_detail(
    large_every, expected
):
    small, large = (np.zeros((side, side, 3), np.uint8) for side in (200, 300))
    source = make_source(748, 0, small.shape, 10)
    source = replace(source, read=lambda row: small if row % large_every else large)
    head, *_ = choose_candidates(source, make_config(NORMAL), CPU)
    assert head.image_size == (expected, expected)


@pytest.mark.parametrize(("large_every", "expected"), [(5, 224), (50, 100)])
def test_few_images_are_larger_than_shared_ones(large_every, expected):
    small, large = (np.zeros((side, side, 3), np.uint8) for side in (100, 300))
    source = make_source(100, 0, small.shape, 2)
    source = replace(source, read=lambda row: small if row % large_every else large)
    size = choose_shared_size(source, make_config({}), [(224, 224)]).value
    assert size == (expected, expected)


@pytest.mark.parametrize(
    ("images", "fields", "budget", "side"),
    [
        (FEW_PHOTOS, {"model": "sprint"}, 60, 128),
        (MANY_PHOTOS, {"model": "sprint"}, 60, 64),
        (FEW_PHOTOS, {"model": "sprint"}, "normal", 128),
        (ICONS, {"model": "sprint"}, 300, 64),
        (FEW_PHOTOS, {"model": "lenet"}, 60, 32),
        (FEW_PHOTOS, {"model": LITE0, "pretrained": True}, "best", 224),
        (ICONS, {"model": LITE0, "pretrained": True}, "best", 128),
        (ICONS, {"model": LITE0, "pretrained": True, "freeze": True}, 20, 64),
        (CLIP_ART, {"model": LITE0, "pretrained": True, "freeze": True}, 30, 160),  # as in auto
        (DIGITS, {"model": "resnet18", "pretrained": True}, "normal", 96),
        (DIGITS, {"model": "vit_tiny_patch16_224", "pretrained": True}, "normal", 224),
        (ICONS, {"model": LITE0, "pretrained": True, "image_size": "80"}, 60, 80),
    ],
)
def test_the_input_of_a_named_network_suits_the_images_and_the_time(images, fields, budget, side):
    size = choose_input_size(make_source(*images), make_config(fields | limit(budget)), CPU)
    assert size.value == (side, side)


@pytest.mark.parametrize(
    ("images", "fields", "budget", "is_frozen"),
    [
        (ICONS, {"model": LITE0, "pretrained": True}, 270, True),  # 265.1 s for 8 epochs at 64x64
        (ICONS, {"model": LITE0, "pretrained": True}, 277, False),
        (ICONS, {"model": LITE0, "pretrained": True, "image_size": "96"}, 277, True),
        (ICONS, {"model": "compact", "weights": "runs/first"}, 60, False),
    ],
)
def test_a_network_is_frozen_unless_eight_epochs_fit(
    images, fields, budget, is_frozen, monkeypatch
):
    monkeypatch.setattr("onsight.tune.input_size.preferred_size", lambda *names: None)
    freezing = choose_freezing(make_source(*images), make_config(fields | limit(budget)), CPU)
    assert freezing.value is is_frozen
