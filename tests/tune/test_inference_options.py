"""Precision and threads for features: measured, but not where a processor cannot gain."""

import pytest
import torch
from prepared import make_prepared

from onsight.tune import planning as inference_options
from onsight.tune.compute import default_options
from onsight.tune.planning import choose_inference, unmeasured_plan


@pytest.fixture
def chosen(bars, monkeypatch):
    """Chooses on a processor of some capability, where bf16 is so many times as fast as fp32."""

    def choose(capability, ratio, **fields):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        seconds = {"fp32": 1.0, "bf16": 1 / ratio}
        monkeypatch.setattr(
            inference_options, "_time_forward", lambda classifier, *_: seconds[classifier.precision]
        )
        config, data = make_prepared(bars, freeze=True, threads=1, **fields)
        plain = unmeasured_plan(config, default_options(config, data.device, 1), "not measured")
        return choose_inference(config, data, plain, 1.0).precision

    return choose


def test_the_faster_precision_is_taken_if_its_features_agree(chosen):
    assert chosen("AVX512", 2.0).value == "bf16"
    assert chosen("AVX512", 1.1).value == "fp32"


def test_bf16_is_not_tried_where_it_would_be_emulated(chosen):
    precision = chosen("AVX2", 2.0)
    assert (precision.value, precision.figure) == ("fp32", None)
    assert "emulate" in precision.reason


def test_what_was_asked_for_stays(chosen):
    assert chosen("AVX512", 2.0, precision="fp32").reason == "set by you"
