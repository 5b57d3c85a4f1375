"""Counts, lists and numbers read well and never round to a claim that they do not make."""

import math

import pytest

from onsight_explain.text import (
    flops_words,
    listed,
    percent,
    plural,
    rate_words,
    ratio_words,
    step_times,
)


def test_times_side_by_side_have_one_unit() -> None:
    assert step_times(0.61e-3, 0.12e-3) == ["0.61 ms", "0.12 ms"]
    assert step_times(1.2e-6, 14e-6, 480e-6) == ["1.20 µs", "14.0 µs", "480 µs"]
    assert step_times(0.0, 6.12e-3) == ["0 ms", "6.12 ms"]
    assert step_times(1.25, 12.5) == ["1.25 s", "12.5 s"]
    assert step_times() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ratio_words(1.044), "1.04x"),
        (ratio_words(3.24), "3.2x"),
        (ratio_words(85.4), "85x"),
        (flops_words(145.2e9), "145 GFLOP/s"),
        (flops_words(61.53e12), "61.5 TFLOP/s"),
        (flops_words(2e15), "2.0 PFLOP/s"),
        (flops_words(5e8), "0.5 GFLOP/s"),
        (rate_words(890e6), "890 MB/s"),
        (rate_words(3.35e12), "3.4 TB/s"),
        (rate_words(12.34e9), "12.3 GB/s"),
        (plural(1, "core"), "1 core"),
        (plural(1024, "core"), "1,024 cores"),
        (listed("abcd", 3), "a, b, c and d"),
        (listed("abcdefg", 3), "a, b, c and 4 more"),
        (percent(0.914), "91.4%"),
        (percent(0.9997), "99.97%"),
        (percent(0.00001), "<0.01%"),
        (percent(math.nan), "–"),
    ],
)
def test_counts_and_rates_read_well(text: str, expected: str) -> None:
    assert text == expected
