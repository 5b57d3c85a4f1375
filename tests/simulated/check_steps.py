"""A training step on the device: no wait of the host, no more launches than the table allows."""

import gc

import pytest
import torch
from on_device import BATCH, DEVICE, IMAGES, IS_SIMULATED, config_and_images, make, steady

from onsight.data.normalization import measure_normalization
from onsight.data.shrink import shrink
from onsight.evaluation.predictions import evaluate_batches
from onsight.models.classifier import Classifier, TtaForward
from onsight.tune import room as room_module
from onsight.tune.room import move_if_room
from onsight.tune.training_data import TrainingData, choose_residency

STEPS = 50  # of an epoch, whose augmentation is launched with the first of them

# Launches of a step, those for its batch included; a change that needs more must say so here.
LAUNCHES = {"lenet": 42, "compact": 91, "sprint": 53}

COMBINED = {
    "crop_area": 0.5,
    "rotate_degrees": 5.0,
    "jitter": 0.3,
    "cutout": 0.2,
    "mixup": 0.4,
    "cutmix": 1.0,
    "ema": 0.9,
    "clip_norm": 1.0,
    "accumulate": 2,
    "class_weights": "balanced",
    "optimizer": "nesterov",
}
SINGLE = {
    "defaults": {},
    "nothing": {"flip": False, "translate": 0.0},
    "crops": {"crop_area": 0.5, "rotate_degrees": 5.0},
    "jitter and cutout": {"jitter": 0.3, "cutout": 0.2},
    "mixes": {"mixup": 0.4, "cutmix": 1.0},
    "moving average, clipping": {"ema": 0.9, "clip_norm": 1.0},
    "parts": {"accumulate": 2},
    "mse": {"loss": "mse"},
    "weights of classes": {"class_weights": "balanced"},
    "sgd": {"optimizer": "nesterov"},
}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        *(pytest.param(model, COMBINED, id=model) for model in LAUNCHES),
        pytest.param("lenet", SINGLE["mse"], id="mse"),
        *(
            pytest.param("lenet", settings, id=f"lenet-{name}", marks=pytest.mark.soak)
            for name, settings in SINGLE.items()
        ),
    ],
)
def test_no_step_makes_the_host_wait(machine, model, settings):
    update, loader = make(model, **settings)
    assert steady(machine, update, loader, 6) == []
    if IS_SIMULATED:
        # That of a loss eight steps ago, which has long been there, is meant.
        waits = [str(one) for one in machine.record.waits if "deferred_losses" not in one.place]
        assert waits == []


@pytest.mark.parametrize(("model", "most"), LAUNCHES.items())
def test_a_step_has_no_more_launches_than_allowed(machine, model, most):
    update, loader = make(model, STEPS * BATCH)
    after = []
    for steps in (3, 4):
        steady(machine, update, loader, steps)
        after.append(machine.record.launches.total())
    launches = (after[0] + (STEPS - 3) * (after[1] - after[0])) / STEPS
    assert launches <= most, machine.record.launches.most_common(20)
    assert launches > most - 3, "the table in this file can be lowered"


@pytest.mark.parametrize("views", ["one", "flip", "flip-shift"])
def test_an_evaluation_waits_only_at_its_end(machine, views):
    update, loader = make()
    classifier = Classifier(update.step.model, update.normalization, "fp32", DEVICE)
    judge = classifier if views == "one" else TtaForward(classifier, views)
    evaluate_batches(judge, loader.in_order())
    machine.record.clear()
    found = evaluate_batches(judge, loader.in_order())
    assert len(found) == IMAGES
    columns = 9
    assert len(machine.record.waits) <= columns + 1  # and the images' numbers, once


def test_a_resumed_epoch_has_the_chunks_of_a_whole_one(machine):
    _, loader = make()
    whole, rest = list(loader.epoch(0, 0)), list(loader.epoch(0, 0, 4))
    assert len(rest) == len(whole) - 4
    for batch, expected in zip(rest, whole[4:], strict=True):
        place, expected_place = batch.place_in_chunk, expected.place_in_chunk
        assert place.start == expected_place.start > 0
        assert place.chunk.ids.tolist() == expected_place.chunk.ids.tolist()
        assert batch.ids.tolist() == expected.ids.tolist()


def test_the_same_batch_in_another_epoch_has_other_numbers(machine):
    update, loader = make()
    batch = next(loader.epoch(0, 0))
    first, again, other = (update.augment(batch, epoch, 0)[0].cpu() for epoch in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_images_shrink_to_the_same_bits_in_tf32_and_under_autocast(machine):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 224, 160, 3), dtype=torch.uint8, generator=draw)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            found = shrink(images.to(DEVICE), (64, 96))
    finally:
        torch.set_float32_matmul_precision(precision)
    assert torch.equal(found.cpu(), shrink(images, (64, 96)))


@pytest.mark.parametrize(("room", "place"), [(2.4, "device"), (1.01, "memory")])
def test_many_images_go_to_the_device_if_a_measured_step_leaves_the_room(
    machine, monkeypatch, room, place
):
    gc.collect()  # what other tests left counts as used, and would go away meanwhile
    monkeypatch.setattr(room_module, "_CHUNK_BYTES", 0)
    config, dataset = config_and_images("lenet", 16_000)
    size = dataset.images.nbytes
    memory = machine.memories[DEVICE.index]
    monkeypatch.setattr(memory, "limit_bytes", memory.used_bytes + int(room * size))
    kept = choose_residency(dataset.images, DEVICE)
    assert kept.value == "memory"
    normalization = measure_normalization(dataset.images, torch.arange(100))
    data = TrainingData(dataset, dataset.images.copied(), normalization, DEVICE)
    chosen, data = move_if_room(config, data, kept, 1)
    assert chosen.value == place
    assert data.images.device == (DEVICE if place == "device" else torch.device("cpu"))
    assert "a step" in chosen.reason
