"""Counts, lists and numbers read well and never round to a claim that they do not make."""

import math

import pytest

from onsight.text import (
    data_size,
    duration,
    fixed_percent,
    gib,
    joined,
    one_line,
    percent,
    plural,
    printable,
    shorten,
)


def test_a_noun_agrees_with_its_count() -> None:
    assert [plural(n, "core") for n in (0, 1, 1024)] == ["0 cores", "1 core", "1,024 cores"]
    assert plural(1, "class", "classes") == "1 class"
    assert plural(2, "class", "classes") == "2 classes"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a and b"),
        ("abcd", "a, b, c and d"),  # one more name is no longer than `1 more`
        ("abcdefg", "a, b, c and 4 more"),
    ],
)
def test_a_long_list_is_cut_short(names: str, text: str) -> None:
    assert joined(list(names), 3) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.914, "91.4%"),
        (0.9997, "99.97%"),
        (0.99996, ">99.99%"),
        (0.9999999999999999, "100%"),
        (0.0004, "0.04%"),
        (0.00001, "<0.01%"),
        (0.0042, "0.4%"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_percent_never_rounds_to_all_or_none(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("name", "text"), [("coat", "coat"), ("coats", "co…"), ("a\n b", "a b"), ("", "")]
)
def test_names_are_shortened_to_one_line(name: str, text: str) -> None:
    assert shorten(name, 3 if name == "coats" else 4) == text


def test_no_character_steers_the_terminal() -> None:
    assert printable("käse\t\x1b[2J\r\x9b1m\u202e.png\n") == "käse\t\\x1b[2J\\r\\x9b1m\\u202e.png\n"
    assert one_line("a\nb") == "a\\nb"
    for code in (*range(9), *range(11, 32), *range(127, 160)):
        assert printable(chr(code)).isprintable()


@pytest.mark.parametrize(("share", "text"), [(0.914, "91.40%"), (1.0, "100.00%"), (None, "-")])
def test_fixed_percent_always_has_two_decimals(share: float | None, text: str) -> None:
    assert fixed_percent(share) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min 0 s"),
        (245, "4 min 5 s"),
        (7385, "2 h 3 min"),
    ],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (data_size(5_488_000), "5.5 MB"),
        (data_size(54_880_000), "54.9 MB"),
        (data_size(12_345_678_900), "12.3 GB"),
        (gib(3 << 29), "1.5 GiB"),
    ],
)
def test_sizes_keep_two_or_three_digits(text: str, expected: str) -> None:
    assert text == expected
