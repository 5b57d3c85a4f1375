"""The plot of a comparison: a PNG file with a line for each candidate that could be timed."""

from matplotlib.figure import Figure
from PIL import Image

from onsight.explainer.show_devices import draw_comparison


def test_every_candidate_has_its_line_at_its_own_speeds(planted, tmp_path, monkeypatch):
    drawn = []
    original = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *a, **k: drawn.append(figure) or original(figure, *a, **k)
    )
    costs = {"cpu": (1e-4, 1e-4), "cuda:0": (1e-3, 1e-6)}
    comparison = planted(costs, [4, 32, 128], problems={("cpu", 128): "out of memory"})
    draw_comparison(comparison, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG"
    (axes,) = drawn[0].axes
    lines = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in axes.containers}
    for name, points in lines.items():
        sizes = [4, 32] if name == "cpu" else [4, 32, 128]
        fixed, image = costs[name]
        assert [size for size, _ in points] == sizes
        for size, rate in points:
            assert abs(rate - size / (fixed + image * size)) < 1e-6 * rate
    assert lines.keys() == costs.keys()
