"""Oracle: the reasons given are the costs that were planted."""

import pytest

from onsight.explainer.show_devices import (
    Crossover,
    crossover_sentence,
    find_crossovers,
    find_outcomes,
    outcome_sentence,
    verdict,
)

SIZES = (4, 32, 128, 512)
CPU_AND_GPU = {"cpu": (0.12e-3, 14e-6), "cuda:0": (0.61e-3, 1.2e-6)}


def sentences(comparison):
    return {one.batch_size: outcome_sentence(comparison, one) for one in find_outcomes(comparison)}


def test_fixed_cost_decides_small_batches_and_cost_per_image_large_ones(planted):
    comparison = planted(CPU_AND_GPU, SIZES)
    found = {one.batch_size: one for one in find_outcomes(comparison)}
    assert (found[4].winners, found[4].rival, found[4].cause) == (("cpu",), "cuda:0", "fixed")
    assert found[4].ratio == pytest.approx((0.61e-3 + 4 * 1.2e-6) / (0.12e-3 + 4 * 14e-6))
    assert (found[512].winners, found[512].cause) == (("cuda:0",), "image")
    assert found[512].ratio == pytest.approx((0.12e-3 + 512 * 14e-6) / (0.61e-3 + 512 * 1.2e-6))
    said = sentences(comparison)
    assert said[4] == (
        "cpu wins 3.5x (3.5 to 3.5) over cuda:0: 99% of a step of cuda:0 is a fixed cost, "
        "0.61 ms for any batch size, against 0.12 ms"
    )
    assert said[512] == "cuda:0 wins 6.0x (6.0 to 6.0) over cpu: 1.20 µs per image against 14.0 µs"
    assert verdict(comparison) == (
        "Fastest at batch 4 to 32: cpu (up to 3.5x over cuda:0, by a lower fixed cost per step); "
        "at batch 128 to 512: cuda:0 (up to 6.0x over cpu, by less time per image)."
    )


def test_the_crossover_is_reported(planted):
    comparison = planted(CPU_AND_GPU, SIZES)
    assert find_crossovers(comparison) == [Crossover(39, "cpu", "cuda:0")]
    assert "cuda:0 overtakes cpu at about batch 39" in crossover_sentence(
        find_crossovers(comparison)[0]
    )
    reversed_order = planted(dict(reversed(CPU_AND_GPU.items())), SIZES)
    assert find_crossovers(reversed_order) == [Crossover(39, "cpu", "cuda:0")]


def test_no_crossover_that_the_measured_steps_contradict(planted):
    comparison = planted(CPU_AND_GPU, SIZES)
    middle = [cell for cell in comparison.cells if cell.batch_size == 128]
    middle[0].rounds, middle[1].rounds = [0.6e-3] * 3, [0.7e-3] * 3  # the cpu is faster here
    comparison.costs.update(planted(CPU_AND_GPU, SIZES).costs)  # the lines stay the same
    assert find_crossovers(comparison) == []


def test_no_crossover_of_lines_that_fit_badly(planted, monkeypatch):
    comparison = planted(CPU_AND_GPU, SIZES)
    comparison.cells[5].rounds = [1.6e-3] * 3  # the gpu at batch 128, where it is still faster
    assert comparison.costs["cuda:0"].max_error > 0.25
    assert find_crossovers(comparison) == []
    assert ": about 9" in sentences(comparison)[4]
    monkeypatch.setattr("onsight.explainer.show_devices._BAD_FIT", 1.0)
    assert len(find_crossovers(comparison)) == 1


def test_no_winner_within_the_noise(planted):
    comparison = planted({"a": (1e-3, 1e-6), "b": (1.1e-3, 1e-6)}, (4, 32))
    slow, fast = comparison.cells[0], comparison.cells[1]
    slow.rounds, fast.rounds = [1.0, 1.1, 1.2], [1.3, 1.4, 1.1]  # b is faster in the last round
    found = find_outcomes(comparison)[0]
    assert (set(found.winners), found.rival) == ({"a", "b"}, "")
    assert sentences(comparison)[4] == "no winner: a and b are level (within the noise or 2%)"
    assert verdict(comparison).startswith("Fastest at batch 4: no clear winner; at batch 32: a (")


def test_a_lead_of_one_percent_does_not_count_however_certain(planted):
    comparison = planted({"a": (1e-3, 0), "b": (1.01e-3, 0)}, (4, 32))
    assert [one.rival for one in find_outcomes(comparison)] == ["", ""]
    assert find_crossovers(comparison) == []


def test_noise_common_to_all_hides_no_winner(planted):
    comparison = planted({"a": (1e-3, 0), "b": (1.1e-3, 0)}, (4, 32), noise=(1, 3, 2, 5, 1.5))
    assert [one.winners for one in find_outcomes(comparison)] == [("a",), ("a",)]


def test_level_winners_are_named_together_and_beat_the_first_one_behind(planted):
    costs = {"a": (3e-3, 0), "b": (2e-3, 0), "c": (1e-3, 0), "d": (1e-3, 0)}
    comparison = planted(costs, (4, 32))
    found = find_outcomes(comparison)[0]
    assert (found.winners, found.rival, found.ratio) == (("c", "d"), "a", pytest.approx(3))
    assert sentences(comparison)[4].startswith(
        "c, level with d, wins 3.0x (3.0 to 3.0) over a: 100% of a step"
    )
    assert verdict(comparison).startswith("Fastest at batch 4 to 32: c or d (up to 3.0x over a")


def test_when_the_first_wins_its_rival_is_the_next_best(planted):
    comparison = planted({"a": (1e-3, 0), "b": (4e-3, 0), "c": (2e-3, 0)}, (4, 32))
    assert [(one.rival, one.ratio) for one in find_outcomes(comparison)] == [
        ("c", pytest.approx(2))
    ] * 2


def test_where_the_first_could_not_be_timed_the_rival_is_the_next_best(planted):
    costs = {"a": (1e-3, 0), "b": (4e-3, 0), "c": (2e-3, 0), "d": (1e-3, 0)}
    comparison = planted(costs, (4,), problems={("a", 4): "out of memory"})
    (outcome,) = find_outcomes(comparison)
    assert (outcome.winners, outcome.rival) == (("d",), "c")


def test_no_reason_is_given_that_the_fits_contradict(planted):
    comparison = planted({"a": (1e-3, 1e-6), "b": (2e-3, 1e-6)}, SIZES)
    comparison.cells[0].rounds, comparison.cells[1].rounds = [4e-3] * 3, [1e-3] * 3
    comparison.costs.update(planted({"a": (1e-3, 1e-6), "b": (2e-3, 1e-6)}, SIZES).costs)
    assert (
        sentences(comparison)[4]
        == "b wins 4.0x (4.0 to 4.0) over a: the fitted costs do not explain it"
    )
    assert verdict(comparison).startswith("Fastest at batch 4: b (4.0x over a); at")


def test_a_cell_without_a_measurement_affects_no_other(planted):
    problems = {("cpu", 512): "out of memory", ("cuda:0", 128): "x", ("cpu", 128): "x"}
    comparison = planted(CPU_AND_GPU, SIZES, problems=problems)
    said = sentences(comparison)
    assert list(said) == [4, 32, 512]
    assert said[512] == "only cuda:0 was timed; 50% of its step is a fixed cost (0.61 ms)"
    assert verdict(comparison).endswith("at batch 512: cuda:0, the only one timed.")


def test_a_single_measurement_has_no_fit(planted):
    comparison = planted({"cpu": (1e-3, 0)}, (4,))
    assert sentences(comparison) == {4: "only cpu was timed"}
    nothing = planted({"cpu": (1e-3, 0)}, (4,), problems={("cpu", 4): "out of memory"})
    assert verdict(nothing) == "Nothing could be timed."
