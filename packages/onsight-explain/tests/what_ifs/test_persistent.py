"""Workers that are kept between epochs."""

import pytest
from torch.utils.data import DataLoader

from onsight_explain.what_ifs.persistent import PersistentWorkers


@pytest.mark.parametrize(
    ("loader", "epochs", "count"),
    [
        ({"workers": 2}, 3, 1),
        ({"workers": 2}, 0, 0),
        ({"workers": 0}, 3, 0),
        ({"workers": 2, "is_persistent": True}, 3, 0),
    ],
)
def test_tried_if_workers_are_started_in_every_epoch(seen, loader, epochs, count):
    assert len(PersistentWorkers.worth(seen(loader=loader, epochs=epochs))) == count


def test_loaders_with_workers_keep_them(apply, numbers):
    apply(persistent_workers=True)
    assert DataLoader(numbers(), 4, num_workers=2).persistent_workers
    assert not DataLoader(numbers(), 4).persistent_workers
