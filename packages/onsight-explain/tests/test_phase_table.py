"""Shares, times per step and ceilings as they are printed, calculated by hand."""

import io

from rich.console import Console

from onsight_explain.ceilings import Ceilings
from onsight_explain.phase_table import describe_utilization, phase_table
from onsight_explain.text import rate_words


def test_the_largest_phase_comes_first_with_its_share_and_its_time_per_step():
    page = io.StringIO()
    phases = {"data": 1.0, "forward": 3.0, "metrics": 0.0}
    device = {"data": 2.0, "forward": 2.0}
    Console(file=page, width=100).print(phase_table(phases, 1000, device))
    rows = [line.split("█")[0].split() for line in page.getvalue().splitlines()]
    assert rows[1:] == [
        ["forward", "and", "loss", "75.0%", "3.00", "ms", "50.0%"],
        ["waiting", "for", "data", "25.0%", "1.00", "ms", "50.0%"],
    ]


def test_speed_is_compared_with_the_ceiling_of_its_precision():
    ceilings = Ceilings({"fp32": 100e9, "bf16": 200e9}, 20e9)
    line = describe_utilization(10**9, 10**8, 0.02, "bf16", ceilings)
    assert "50.0 GFLOP/s, 25.0% of the 200 GFLOP/s of a large bf16 matrix product" in line
    assert f"{rate_words(5e9)}, 25.0% of the {rate_words(20e9)} of a large copy" in line
    assert "caches" not in line


def test_a_speed_above_its_ceiling_is_said_as_measured():
    """Not as a share above 100%, which would be printed as >99.99%."""
    ceilings = Ceilings({"fp32": 100e9, "bf16": 200e9}, 4e9)
    line = describe_utilization(5 * 10**9, 92 * 10**6, 0.02, "bf16", ceilings)
    assert "250 GFLOP/s, more than the 200 GFLOP/s of a large bf16 matrix product" in line
    assert "4.6 GB/s, more than the 4.0 GB/s of a large copy, thanks to caches" in line
    assert "%" not in line


def test_a_speed_that_rounds_to_its_ceiling_is_all_of_it():
    line = describe_utilization(10**9, 80_100_000, 0.02, "fp32", Ceilings({"fp32": 100e9}, 4e9))
    assert "4.0 GB/s, 100% of the 4.0 GB/s of a large copy" in line
    assert "caches" not in line
