"""The precision for features: by rule, whatever the machine is busy with."""

import time

import pytest
import torch
from prepared import make_prepared

from onsight.tune import planning
from onsight.tune.compute import default_options
from onsight.tune.planning import choose_inference, unmeasured_plan


@pytest.fixture
def chosen(bars, monkeypatch):
    """Chooses on a processor with or without bf16, whose features are off by so much."""

    def choose(has_bf16, error=0.0, **fields):
        def compute(classifier, batches):
            features = torch.eye(4)
            return features if classifier.precision == "fp32" else features + error

        def refuse():
            raise AssertionError("the choice must not depend on the clock")

        config, data = make_prepared(bars, freeze=True, threads=1, **fields)
        plain = unmeasured_plan(config, default_options(config, data.device, 1), "not measured")
        with monkeypatch.context() as patch:
            patch.setattr(planning, "has_native_bf16", lambda: has_bf16)
            patch.setattr(planning, "compute_features", compute)
            for clock in ("time", "monotonic", "perf_counter", "process_time"):
                patch.setattr(time, clock, refuse)
            return choose_inference(config, data, plain)

    return choose


def test_bf16_is_taken_if_its_features_agree(chosen):
    assert chosen(True).precision.value == "bf16"
    # The cosine of (1, 0, 0, 0) and (1.2, 0.2, 0.2, 0.2) is 1.2 / sqrt(1.56) = 0.961.
    different = chosen(True, error=0.2).precision
    assert (different.value, different.figure) == ("fp32", pytest.approx(0.961, abs=1e-3))


def test_bf16_is_not_used_where_it_would_be_emulated(chosen):
    precision = chosen(False).precision
    assert (precision.value, precision.figure) == ("fp32", None)
    assert "emulate" in precision.reason


def test_what_was_asked_for_stays(chosen):
    assert chosen(True, precision="fp32").precision.reason == "set by you"
    assert chosen(True).threads.value == 1
