"""Which backbones `--model auto` may choose from."""

import pytest
import torch

from onsight.models.timm_nets import offline_models
from onsight.tune.auto import candidates
from onsight.tune.auto.candidates import backbones

OFFLINE = offline_models()
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hub(monkeypatch):
    """The offline weights are here, and those of convnext_tiny in the Hub's cache."""
    monkeypatch.setattr(candidates, "offline_models", lambda: OFFLINE)
    monkeypatch.setattr(candidates, "is_cached", lambda hub_id: "convnext_tiny" in hub_id)


@pytest.mark.usefixtures("hub")
def test_a_cpu_tries_what_packages_hold():
    assert backbones(CPU, may_download=True) == OFFLINE


@pytest.mark.usefixtures("hub")
def test_an_accelerator_also_tries_larger_nets_that_were_downloaded():
    assert backbones(GPU, may_download=False) == [*OFFLINE, "convnext_tiny"]


@pytest.mark.usefixtures("hub")
def test_nothing_is_downloaded_unless_asked_for():
    assert backbones(GPU, may_download=True) == [*OFFLINE, "resnet50", "convnext_tiny"]
