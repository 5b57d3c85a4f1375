"""Oracle: the splitmix64 of the literature, in Python's own unbounded integers."""

import torch

from onsight.randomness import key, mix, permutation, uniform

MASK = (1 << 64) - 1


def reference_uniform(seed, epoch, number, column):
    word = mix(mix((number * 64 + column) & MASK) ^ key(seed, epoch))
    return (word >> 40) / (1 << 24)


def test_mix_gives_the_published_first_outputs_of_splitmix64_seeded_with_zero():
    gamma = 0x9E3779B97F4A7C15
    states = [0, gamma, 2 * gamma & MASK]
    assert [mix(state) for state in states] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_tensor_draw_equals_python_integers():
    ids = torch.tensor([0, 1, 7, 123_456_789, 2**40])
    columns = [0, 1, 17, 63]
    drawn = uniform(3, 5, ids, columns)
    for row, number in enumerate(ids.tolist()):
        for place, column in enumerate(columns):
            assert drawn[row, place].item() == reference_uniform(3, 5, number, column)


def test_numbers_do_not_depend_on_the_batch_they_are_drawn_in():
    ids = torch.arange(100)
    whole = uniform(0, 1, ids, range(3))
    parts = torch.cat([uniform(0, 1, part, range(3)) for part in (ids[:1], ids[1:64], ids[64:])])
    assert torch.equal(whole, parts)


def test_numbers_are_uniform_and_differ_by_seed_epoch_and_column():
    ids = torch.arange(20_000)
    drawn = uniform(0, 0, ids, range(2)).double()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.var() - 1 / 12) < 0.002
    assert abs(torch.corrcoef(drawn.T)[0, 1]) < 0.03
    assert not torch.equal(drawn, uniform(1, 0, ids, range(2)).double())
    assert not torch.equal(drawn, uniform(0, 1, ids, range(2)).double())


def test_permutation_is_a_permutation_and_a_function_of_seed_and_epoch():
    order = permutation(1, 2, 1000)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, permutation(1, 2, 1000))
    assert not torch.equal(order, permutation(1, 3, 1000))
    assert not torch.equal(order, permutation(2, 2, 1000))
