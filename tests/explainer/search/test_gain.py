"""Which changes are combined; gains are planted, and multiply."""

from dataclasses import dataclass

import pytest

from onsight.explainer.search.gain import BETTER, GAIN, combine


@dataclass(frozen=True)
class Change:
    ratio: float
    groups: frozenset[str]


def change(ratio, *groups):
    return Change(ratio, frozenset(groups))


@pytest.fixture
def pairs():
    """Appended to by `both`: the groups of each pair that was tried."""
    return []


@pytest.fixture
def both(pairs):
    def multiply(best, other):
        pairs.append((set(best.groups), set(other.groups)))
        return Change(best.ratio * other.ratio, best.groups | other.groups)

    return multiply


def test_of_each_group_only_the_fastest_is_combined(both, pairs):
    tried = [change(1.4, "y"), change(2.0, "x"), change(1.9, "x"), change(1.5, "y")]
    best = combine(tried, both, 9)
    assert best == change(3.0, "x", "y")
    assert pairs == [({"x"}, {"y"})]


def test_slower_changes_are_not_combined(both, pairs):
    assert combine([change(2.0, "x"), change(GAIN - 0.01, "y")], both, 9) == change(2.0, "x")
    assert combine([change(1.0, "x")], both, 9) is None
    assert pairs == []


@pytest.mark.parametrize(("gain", "is_kept"), [(BETTER + 0.01, True), (BETTER - 0.01, False)])
def test_a_combination_must_gain_enough(gain, is_kept):
    def weak(best, other):
        return Change(best.ratio * gain, best.groups | other.groups)

    best = combine([change(2.0, "x"), change(1.5, "y")], weak, 9)
    assert (best.groups == {"x", "y"}) == is_kept


def test_the_number_of_combinations_is_limited(both, pairs):
    combine([change(2.0 - 0.1 * n, str(n)) for n in range(6)], both, 2)
    assert len(pairs) == 2
