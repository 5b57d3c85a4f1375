"""Equal allocations of a cluster's CPUs and GPUs."""

import pytest

from onsight.cluster.session import Allocation, allocate
from onsight.errors import ConfigError

SMALL, LARGE = {"CPU": 2.0}, {"CPU": 64.0, "GPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "processes", "device", "expected"),
    [
        ([SMALL], 2, "auto", Allocation(2, 1)),
        ([SMALL], 1, "auto", Allocation(1, 2)),
        ([SMALL, SMALL, SMALL], 0, "auto", Allocation(3, 2)),  # one per machine
        ([SMALL, {}], 0, "auto", Allocation(1, 2)),  # a head without CPUs takes none
        ([LARGE, LARGE], 0, "auto", Allocation(16, 8, 1)),  # one per GPU
        ([LARGE, LARGE], 2, "cuda", Allocation(2, 64, 1)),
        ([LARGE, SMALL], 3, "cpu", Allocation(3, 21)),
        ([{"CPU": 3.0}, {"CPU": 2.0}], 2, "auto", Allocation(2, 2)),
        ([{"CPU": 3.0}, {"CPU": 2.0}], 5, "auto", Allocation(5, 1)),
    ],
)
def test_allocations_are_the_largest_that_all_fit(nodes, processes, device, expected):
    assert allocate(nodes, processes, device) == expected


def test_ray_is_asked_for_the_same():
    assert Allocation(3, 2).resources == {"CPU": 2}
    assert Allocation(16, 8, 1).resources == {"CPU": 8, "GPU": 1}


@pytest.mark.parametrize(
    ("nodes", "processes", "device", "said"),
    [
        ([SMALL], 8, "auto", "8 ranks need a CPU each, but the Ray cluster has 2 on 1 machine"),
        ([SMALL], 8, "auto", "give --ranks 2 or"),
        ([LARGE], 9, "auto", "9 ranks need a GPU each, but the Ray cluster has 8"),
        ([LARGE], 9, "auto", "--device cpu"),
        ([SMALL], 1, "cuda", "has no GPU"),
        ([{}], 0, "auto", "ray start --address"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(nodes, processes, device, said):
    with pytest.raises(ConfigError) as error:
        allocate(nodes, processes, device)
    assert said in str(error.value)
