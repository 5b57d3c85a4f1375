"""Threads that spin briefly."""

import pytest

from onsight_explain.spinning import SHORT_SPIN, SPIN_VARIABLE
from onsight_explain.what_ifs.spin import ShortSpin


@pytest.mark.parametrize(
    ("threads", "variable", "count"),
    [(2, None, 1), (2, SHORT_SPIN, 1), (2, "77", 0), (1, None, 0)],
)
def test_tried_if_several_threads_compute_and_the_user_chose_nothing(
    seen, monkeypatch, threads, variable, count
):
    if variable:
        monkeypatch.setenv(SPIN_VARIABLE, variable)
    else:
        monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    assert len(ShortSpin.worth(seen(threads=threads))) == count
    assert ShortSpin(True).environment == {SPIN_VARIABLE: SHORT_SPIN}
