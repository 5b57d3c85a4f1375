"""Features shared by trainings: each row is computed once."""

import torch

from onsight.features.feature_pass import SharedFeatures


def recorder(limit=1000):
    asked = []

    def compute(ids):
        asked.append(ids.tolist())
        done = ids[:limit]
        return torch.stack([done.float(), 10 * done.float()], dim=1)

    return asked, compute


def test_only_what_is_missing_is_computed():
    shared, (asked, compute) = SharedFeatures(), recorder()
    first = shared.get("plain", torch.tensor([5, 1]), compute)
    second = shared.get("plain", torch.tensor([1, 7, 5, 0]), compute)
    assert first.tolist() == [[5, 50], [1, 10]]
    assert second.tolist() == [[1, 10], [7, 70], [5, 50], [0, 0]]
    assert asked == [[5, 1], [7, 0]]


def test_kinds_are_kept_apart():
    shared, (asked, compute) = SharedFeatures(), recorder()
    for kind in ("plain", "mirrored", "plain"):
        shared.get(kind, torch.tensor([3]), compute)
    assert asked == [[3], [3]]


def test_what_there_was_no_time_for_is_left_out_and_computed_later():
    shared, (asked, compute) = SharedFeatures(), recorder(limit=2)
    ids = torch.tensor([4, 9, 2])
    assert shared.get("plain", ids, compute).tolist() == [[4, 40], [9, 90]]
    assert shared.get("plain", ids, compute).tolist() == [[4, 40], [9, 90], [2, 20]]
    assert asked == [[4, 9, 2], [2]]


def test_no_images_have_no_rows():
    shared, (_, compute) = SharedFeatures(), recorder()
    nothing = torch.zeros(0, dtype=torch.int64)
    assert shared.get("plain", nothing, lambda ids: torch.zeros(0, 2)).shape == (0, 2)
    shared.get("plain", torch.tensor([1]), compute)
    assert shared.get("plain", nothing, compute).shape == (0, 2)
