"""What a device can do; torch's own answers are replaced where they need one."""

import types

import pytest
import torch

from onsight_explain import devices


@pytest.mark.parametrize(
    ("device", "has_fp64", "expected"),
    [("cpu", 0, True), ("cuda:1", 0, True), ("mps", 1, False), ("xpu", 0, False), ("xpu", 1, True)],
)
def test_which_devices_have_float64(monkeypatch, device, has_fp64, expected):
    facts = types.SimpleNamespace(has_fp64=has_fp64)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: facts)
    assert devices.has_float64(torch.device(device)) is expected


@pytest.mark.parametrize(
    ("device", "capability", "hip", "has_bf16", "has_tf32"),
    [
        ("cuda:1", (8, 0), None, True, True),
        ("cuda:1", (7, 5), None, False, False),
        ("cuda:1", (9, 4), "6.4", True, False),
        ("cuda:1", (7, 5), "6.4", True, False),
        ("cpu", (9, 0), None, False, False),
        ("xpu", (9, 0), None, False, False),
    ],
)
def test_short_floats_are_asked_of_the_given_gpu(
    monkeypatch, device, capability, hip, has_bf16, has_tf32
):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda one: capability if one.index == 1 else (0, 0)
    )
    assert devices.has_bf16(torch.device(device)) is has_bf16
    assert devices.has_tf32(torch.device(device)) is has_tf32
