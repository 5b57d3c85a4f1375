"""A run that was chosen without the held-out images, compared with each of the others."""

import pytest
from planted_runs import plant_run, said
from scipy import stats

import onsight
from onsight.errors import OutputError


def plant(folder, **rights):
    """Runs that get the first so many of 100 images right."""
    return [
        plant_run(
            folder / name,
            [said(place, "cat", "cat" if place < right else "dog") for place in range(100)],
        )
        for name, right in rights.items()
    ]


def test_only_its_own_pairs_are_corrected_for(tmp_path):
    runs = plant(tmp_path, a=80, b=90, c=85)
    ten, five = stats.binomtest(0, 10).pvalue, stats.binomtest(0, 5).pvalue  # discordant images
    found = onsight.compare(*runs, against=runs[0])
    assert found.best == "a"
    assert [(gap.above, gap.below) for gap in found.gaps] == [("b", "a"), ("c", "a")]
    corrected = [gap.corrected_p for gap in found.gaps]
    assert corrected == [pytest.approx(2 * ten), pytest.approx(five)]  # Holm, of two
    assert "for 2 pairs of runs" in found.save_page(tmp_path / "page.html").read_text()
    usual = onsight.compare(*runs)
    corrected = [gap.corrected_p for gap in usual.gaps]
    assert corrected == [pytest.approx(3 * ten), pytest.approx(2 * five)]  # of three
    assert "for 3 pairs of runs" in usual.save_page(tmp_path / "page.html").read_text()


def test_it_must_be_one_of_them(tmp_path):
    runs = plant(tmp_path, a=80, b=90)
    with pytest.raises(OutputError, match="not one of the runs"):
        onsight.compare(*runs, against=tmp_path / "c")
