"""Oracle: the same network on images that are shrunk with every batch."""

import pytest
import torch

from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.sources.find import ReadOptions, find_source
from onsight.models.classifier import Classifier
from onsight.step.build import make_net
from onsight.tune import training_data
from onsight.tune.training_data import place_data


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(("side", "is_shrunk"), [(32, False), (17, False), (16, True)])
def test_images_are_shrunk_once_for_a_much_smaller_input_whatever_memory_is_free(
    shared_bars, monkeypatch, side, is_shrunk, fits
):
    monkeypatch.setattr(training_data, "_fits", lambda size, device: fits)
    config = make_config({"model": "lenet", "normalize": "half"})
    source = find_source(str(shared_bars), ReadOptions.from_config(config.model_dump()), None)
    dataset = open_dataset(source, config, (32, 32), None, 1).at_size((side, side))
    device = torch.device("cpu")
    data = place_data(dataset, config, device, "map")
    assert data.images.shape[:2] == ((side, side) if is_shrunk else (32, 32))
    classifier = Classifier(make_net(config, dataset, device), data.normalization, "fp32", device)
    ids = torch.arange(20)
    logits = [classifier(images.gather(ids).images) for images in (data.images, dataset.images)]
    assert torch.equal(*logits)
