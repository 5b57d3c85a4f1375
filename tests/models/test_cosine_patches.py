"""Fixed whitening filters against an eigendecomposition and scipy's cosine transform."""

import numpy as np
import pytest
import torch
from scipy.fft import dctn

from onsight.models.compact import cosine_patches


def correlated(channels: int, side: int) -> np.ndarray:
    """The correlations of all values of a patch, falling with the distance along each axis."""

    def along(size: int) -> np.ndarray:
        places = np.arange(size)
        return 0.95 ** np.abs(places[:, None] - places)

    return np.kron(along(channels), np.kron(along(side), along(side)))


def test_the_patterns_are_those_of_the_cosine_transform():
    patterns = cosine_patches(1, 4, 16)[:16, 0].double().numpy()
    frequencies = dctn(patterns, axes=(1, 2), norm="ortho")
    largest = np.abs(frequencies).max(axis=(1, 2))
    # Each pattern is one frequency, and each frequency occurs once.
    assert np.allclose((frequencies**2).sum(axis=(1, 2)), largest**2)
    assert len({int(index) for index in np.abs(frequencies).reshape(16, -1).argmax(axis=1)}) == 16


@pytest.mark.parametrize(("channels", "side", "count"), [(1, 3, 8), (3, 3, 8), (3, 4, 16)])
def test_correlated_patches_come_out_nearly_white(channels, side, count):
    both = cosine_patches(channels, side, count)
    assert both.shape == (2 * count, channels, side, side)
    assert torch.equal(both[:count], -both[count:])
    filters = both[:count].flatten(1).double().numpy()
    covariance = filters @ correlated(channels, side) @ filters.T
    variances = np.diag(covariance)
    before = variances / (filters**2).sum(axis=1)
    assert variances == pytest.approx(before / (before + 1e-3))
    off = covariance - np.diag(variances)
    assert np.abs(off).max() < 0.25


def test_the_most_varying_patterns_are_taken_first():
    side, count = 4, 8
    filters = cosine_patches(3, side, count)[:count].flatten(1).double().numpy()
    unit = filters / np.linalg.norm(filters, axis=1, keepdims=True)
    covariance = correlated(3, side)
    kept = np.einsum("ni,ij,nj->n", unit, covariance, unit)
    assert (np.diff(kept) < 1e-9).all()
    best = np.sort(np.linalg.eigvalsh(covariance))[::-1][:count].sum()
    assert 0.99 * best < kept.sum() <= best + 1e-9
