"""A blend behind HTTP. Oracle: the plain sum of the members' probabilities in float64."""

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from planted_blend import CPU, expected_probabilities
from serve_stub import running, until

import onsight
from onsight.errors import ConfigError
from onsight.inference.images import read_image
from onsight.models.build import build_classifier
from onsight.models.file import load_model_file
from onsight.serve.access import Access, Limits
from onsight.serve.server import serve


@pytest.fixture(scope="module")
def contents(shared_bars):
    return [path.read_bytes() for path in sorted(shared_bars.rglob("*.png"))[::9]]


def answers(served, contents):
    """The probabilities of the classes, in the order of their names; each image asked alone."""
    with ThreadPoolExecutor(4) as pool:
        rows = [row for _, (row,) in pool.map(served.predict, contents)]
    return [
        [share for _, share in sorted((e["class"], e["probability"]) for e in row["probabilities"])]
        for row in rows
    ]


@pytest.mark.parametrize("member", ["", "small"])
def test_the_answers_are_those_of_the_blend_or_its_member(blended, contents, member):
    blend = load_model_file(blended)
    images = torch.from_numpy(np.stack([read_image(data, blend.format) for data in contents]))
    if member:
        expected = build_classifier(blend.members[member], CPU)(images).softmax(1).numpy()
    else:
        expected = expected_probabilities(blend, images)
    with running(blended, partial(onsight.load, member=member)) as served:
        assert np.allclose(answers(served, contents), expected, atol=1e-6)
        assert served.ask("GET", "/model")[0] == 200


def test_heat_maps_and_similar_images_are_answered(blended, contents):
    pytest.importorskip("captum")
    with running(blended, onsight.load) as served:
        status, _, png = served.ask("POST", "/explain", contents[0], content_type="image/png")
        assert status == 200
        assert Image.open(io.BytesIO(png)).format == "PNG"

        def search():
            return served.ask("POST", "/similar?count=3", contents[0], content_type="image/png")

        until(lambda: search()[0] == 200)
        found = search()[2]["similar"]
    assert len(found) == 3
    assert found[0]["similarity"] > found[2]["similarity"]


def test_a_member_is_of_one_model(blended):
    limits = {"device": "cpu", "module": None, "member": "own"}
    with pytest.raises(ConfigError, match="name one MODEL with it"):
        serve([blended, blended], Access(), Limits(), **limits)
