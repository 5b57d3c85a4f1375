"""Another number of threads."""

import pytest
import torch

from onsight_explain.what_ifs.threads import Threads


@pytest.mark.parametrize(
    ("device", "threads", "counts"), [("cpu", 2, [1, 4]), ("cpu", 1, [4]), ("cuda:0", 2, [])]
)
def test_one_and_all_cores_are_tried_on_the_cpu(seen, device, threads, counts):
    found = Threads.worth(seen(device=device, threads=threads))
    assert [one.value for one in found] == counts


def test_the_script_cannot_change_it_back(apply):
    apply(threads=2)
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 2
