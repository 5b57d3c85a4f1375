"""The report of a run of several networks, from files written by hand."""

import json

from onsight.report.page import write_report


def make_row(name, weight):
    accuracy = {"accuracy": 0.75, "accuracy_low": 0.6, "accuracy_high": 0.9, "images": 40}
    facts = {"model": f"net of {name}", "loss": 0.5, "image_size": [64, 48], "parameters": 9}
    return {
        "name": name,
        "weight": weight,
        "seconds": 4.0,
        "ms_per_image": 1.5,
        **accuracy,
        **facts,
    }


def test_it_shows_every_network_and_how_the_main_one_was_trained(trained, tmp_path):
    results = json.loads((trained.path / "results.json").read_text())
    results["members"] = [make_row("head", 0.7), make_row("small", 0.3)]
    (tmp_path / "results.json").write_text(json.dumps(results))
    for name in ("head", "small"):
        folder = tmp_path / "members" / name
        folder.mkdir(parents=True)
        plan = {"precision": {"value": f"precision of {name}", "reason": "planted"}}
        (folder / "plan.json").write_text(json.dumps(plan))
    placement = (trained.path / "placement.json").read_text()
    (tmp_path / "members" / "small" / "placement.json").write_text(placement)
    page = write_report(tmp_path).read_text()
    section = page[page.index('<section id="members">') : page.index('<section id="curves">')]
    assert all(text in section for text in ("net of head", "net of small", "64×48", "70.0%"))
    assert '<a href="#members">' in page
    assert "precision of head" in page
    assert "precision of small" not in page
    assert "no readable <code>placement.json" not in page
