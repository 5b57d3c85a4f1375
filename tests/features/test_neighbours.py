"""Oracle: scikit-learn's cosine distances, in float64."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from onsight.features import neighbours
from onsight.features.neighbours import find_nearest


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(neighbours, "_QUERIES", 3)
    monkeypatch.setattr(neighbours, "_ROWS", 7)


def random_features(count, seed):
    return np.random.default_rng(seed).normal(2.0, 1.0, (count, 16)).astype(np.float32)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("count", [1, 5, 12])  # 12: more than a block has
def test_the_nearest_are_scikit_learns(count):
    queries, among = random_features(10, 0), random_features(40, 1)
    centre = among.mean(0, dtype=np.float64)
    search = NearestNeighbors(n_neighbors=count, metric="cosine").fit(among - centre)
    distances, rows = search.kneighbors(queries - centre)
    found = find_nearest(torch.from_numpy(queries), torch.from_numpy(among), count)
    assert found.rows.tolist() == rows.tolist()
    assert np.allclose(found.similarities, 1 - distances, atol=1e-5)


@pytest.mark.usefixtures("small_blocks")
def test_all_are_found_if_there_are_fewer_than_asked_for():
    among = torch.from_numpy(random_features(4, 1))
    found = find_nearest(among, among, 9)
    assert found.rows.sort(dim=1).values.tolist() == [[0, 1, 2, 3]] * 4
    assert found.rows[:, 0].tolist() == [0, 1, 2, 3]
    assert torch.allclose(found.similarities[:, 0], torch.ones(4))


def test_what_all_images_share_makes_none_of_them_alike():
    among = torch.tensor([[100.0, 1.0], [100.0, -1.0]])
    found = find_nearest(among, among, 2)
    assert torch.allclose(found.similarities, torch.tensor([[1.0, -1.0]] * 2))


def test_no_queries_find_nothing():
    found = find_nearest(torch.zeros(0, 3), torch.ones(5, 3), 2)
    assert found.rows.shape == found.similarities.shape == (0, 2)
