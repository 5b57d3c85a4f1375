"""Another number of worker processes."""

import pytest
from torch.utils.data import DataLoader

from onsight_explain.what_ifs.workers import Workers


@pytest.mark.parametrize(
    ("loader", "waits", "counts"),
    [({"workers": 0}, 0.5, [1, 2, 4]), ({"workers": 2}, 0.0, [0, 1, 4]), ({"workers": 0}, 0.0, [])],
)
def test_tried_if_the_script_waits_or_has_workers(seen, loader, waits, counts):
    found = Workers.worth(seen(loader=loader, waits=waits))
    assert [one.value for one in found] == counts


@pytest.mark.parametrize("workers", [0, 2])
def test_every_loader_gets_them(apply, numbers, workers):
    apply(workers=workers)
    loader = DataLoader(numbers(), 4, shuffle=True, num_workers=1, prefetch_factor=3)
    assert loader.num_workers == workers
