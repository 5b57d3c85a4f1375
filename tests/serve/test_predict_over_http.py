"""Oracle: the same model asked in Python."""

import base64
import io
import json
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from serve_stub import FORM, StubRunner, form, image, load_stub, running, until

import onsight
from odd_files import odd_files
from onsight.inference.images import read_image
from onsight.serve.access import Access

VALUES = (0, 40, 128, 200, 255)


def expected(content):
    runner = StubRunner()
    return runner.run(read_image(content, runner.format)[None]).probabilities[0]


def test_every_form_of_an_image_gives_the_same_answer(server):
    for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"):
        content = image(90, kind=kind)
        status, (row,) = server.predict(content)
        assert (status, row["name"], row["problem"]) == (200, "a.png", None)
        want = expected(content)
        assert row["predicted"] == StubRunner.classes[want.argmax()]
        shares = {entry["class"]: entry["probability"] for entry in row["probabilities"]}
        assert [shares[name] for name in StubRunner.classes] == pytest.approx(want, abs=1e-6)
        for kind in ("image/png", "application/octet-stream", "image/x-unheard-of"):
            raw = server.ask("POST", "/predict", content, content_type=kind)[2]
            assert raw["predictions"][0] == {**row, "name": None}


def test_several_images_are_answered_in_order(server):
    contents = [image(value) for value in VALUES * 5]
    status, rows = server.predict(*contents, query="?top=1")
    assert status == 200
    for content, row in zip(contents, rows, strict=True):
        assert row["probability"] == pytest.approx(float(expected(content).max()), abs=1e-6)
        assert len(row["probabilities"]) == 1


def test_the_answers_equal_those_of_a_run_in_python(trained, bars):
    paths = sorted(bars.rglob("*.png"))[::12]
    want = onsight.load(trained.path).predict_proba(paths)
    with running(trained.path, onsight.load) as served:
        rows = served.predict(*(path.read_bytes() for path in paths))[1]
        card = served.ask("GET", "/model")[2]
    for row, shares in zip(rows, want, strict=True):
        found = {entry["class"]: entry["probability"] for entry in row["probabilities"]}
        assert [found["across"], found["down"]] == pytest.approx(shares, abs=1e-6)
    assert card["name"] == trained.path.name
    assert (card["accuracy"], card["images"]) == (
        trained.results["accuracy"],
        trained.results["images"],
    )
    assert [row["n"] for row in card["per_class"]] == [
        row["images"] for row in trained.results["classes"]
    ]


def test_names_of_classes_may_be_other_bytes_than_utf8(model):
    def load(path):
        predictor = load_stub(path)
        predictor.classes = ("caf\udce9", "b", "c")
        return predictor

    with running(model, load) as served:
        assert served.predict(image(0))[1][0]["predicted"] == "caf\udce9"
        assert served.ask("GET", "/model")[2]["classes"][0] == "caf\udce9"


def test_odd_images_are_answered_as_in_python(trained):
    contents = [data for _, data in odd_files()]
    expected = onsight.load(trained.path)
    shares = expected.predict_proba(contents)
    assert len(shares) >= 200
    with running(trained.path, onsight.load) as served:
        for start in range(0, len(contents), 32):
            status, rows = served.predict(*contents[start : start + 32])
            assert status == 200
            for row, share in zip(rows, shares[start : start + 32], strict=True):
                assert row["predicted"] == expected.classes[share.argmax()]
                assert abs(row["probability"] - share.max()) <= 1e-5


def test_only_what_cannot_be_used_has_a_problem(server):
    status, rows = server.predict(image(10), b"no image", b"", image(250))
    assert status == 200
    assert [row["predicted"] for row in rows] == ["dark", None, None, "light"]
    assert rows[1]["problem"]
    assert rows[2]["problem"] == "empty file (0 bytes)"
    status, rows = server.predict(b"no image", b"")
    assert status == 422
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("status", "path", "kind", "body"),
    [
        (400, "/predict?top=0", "image/png", b""),
        (400, "/predict?top=1001", "image/png", b""),
        (400, "/predict?top=" + quote("５"), "image/png", b""),
        (400, "/predict?top=-1", "image/png", b""),
        (400, "/predict?top=1&top=2", "image/png", b""),
        (400, "/predict?url=http://127.0.0.1/", "image/png", b""),
        (404, "/predict?model=/etc/passwd", "image/png", b""),
        (404, "/predict?model=", "image/png", b""),
        (415, "/predict", "application/json", b"[" * 50_000),
        (415, "/predict", "text/plain", b"x"),
        (415, "/predict", "application/x-www-form-urlencoded", b"images=x"),
        (400, "/predict", FORM, b""),
        (400, "/predict", FORM, form()),
        (400, "/predict", FORM, form(b"x", name="file")),
        (400, "/predict", FORM, form(b"x")[:-4]),
        (400, "/predict", FORM, form(b"x").replace(b"--frontier\r", b"--frontiex\r", 1)),
        (400, "/predict", "multipart/form-data", form(b"x")),
        (400, "/predict", f"{FORM}{'x' * 300}", form(b"x")),
        (404, "/explain?class=unicorn", "image/png", b""),
        (501, "/explain", "image/png", b""),
        (501, "/similar", "image/png", b""),
        (404, "/predict/", "image/png", b""),
    ],
)
def test_what_is_wrong_is_said(server, status, path, kind, body):
    found, _, answer = server.ask("POST", path, body, content_type=kind)
    assert found == status
    assert answer.keys() == {"error"}
    assert server.is_healthy()


def test_names_and_classes_are_only_data(server):
    name = "../../etc/<script>é\u202e.png"
    body = form(image(1)).replace(b"a.png", name.encode())
    answer = server.ask("POST", "/predict", body, content_type=FORM)[2]
    assert answer["predictions"][0]["name"] == name


def test_batches_gather_under_load_and_a_single_image_waits_for_nothing(model):
    with running(model, lambda path: load_stub(path, 0.02)) as served:
        runner = served.runner
        runner.batches.clear()
        served.predict(image(1))
        assert runner.batches == [1]
        served.predict(*(image(value) for value in range(40)))
        assert sum(runner.batches) == 41
        assert max(runner.batches) == runner.batch_size
        assert len(runner.batches) <= 9


def test_metrics_count_images_and_requests(model):
    with running(model) as served:
        served.predict(image(1), b"x")
        served.ask("GET", "/nothing")
        text = served.ask("GET", "/metrics")[2].decode()
    assert 'onsight_images_total{model="light",outcome="predicted"} 1.0' in text
    assert 'onsight_images_total{model="light",outcome="failed"} 1.0' in text
    assert 'onsight_requests_total{code="200",route="/predict"} 1.0' in text
    assert 'onsight_requests_total{code="404",route="(other)"} 1.0' in text
    assert 'onsight_queue_images{model="light"} 0.0' in text
    assert "nothing" not in text


def test_the_log_is_json_and_names_no_file(model, capfd):
    with running(model) as served:
        served.ask("POST", "/predict", form(image(1), file="secret.png"), content_type=FORM)
        served.ask("GET", "/secret")
    lines = capfd.readouterr().err.splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["status"] for event in events if event["event"] == "request"] == [200, 404]
    assert not any("secret" in line for line in lines)


def test_a_model_of_several_is_named(tmp_path):
    for name, factor in (("plain", 1.0), ("blind", 0.0)):
        (tmp_path / f"{name}.onnx").write_text(str(factor))
    (tmp_path / "notes.txt").write_text("not a model")
    with running(tmp_path) as served:
        told = served.ask("GET", "/models")[2]
        assert (told["models"], told["default"]) == (["blind", "plain"], "blind")
        rows = [
            served.predict(image(255), query=f"?model={name}")[1] for name in ("blind", "plain")
        ]
    assert [row[0]["predicted"] for row in rows] == ["dark", "light"]
    assert np.isclose(rows[1][0]["probability"], expected(image(255)).max())


def test_heat_is_laid_over_an_image_for_the_class_that_is_asked_for(trained, bars):
    pytest.importorskip("captum")
    body = sorted(bars.rglob("*.png"))[3].read_bytes()
    with running(trained.path, onsight.load) as served:
        assert served.ask("GET", "/model")[2]["capabilities"]["explain"]
        drawn = {}
        for name in ("", "?class=across", "?class=down"):
            asked = f"/explain{name}"
            status, headers, png = served.ask("POST", asked, body, content_type="image/png")
            assert status == 200
            drawn[headers["X-Onsight-Class"]] = png
            assert Image.open(io.BytesIO(png)).mode == "RGB"
        assert len(drawn) == 2
        assert drawn["across"] != drawn["down"]


def test_the_training_images_that_look_most_alike_are_found(trained, bars):
    path = sorted(bars.rglob("*.png"))[7]
    with running(trained.path, onsight.load) as served:
        assert served.ask("GET", "/model")[2]["capabilities"]["similar"]

        def similar():
            body = path.read_bytes()
            return served.ask("POST", "/similar?count=3", body, content_type="image/png")

        status, headers, _ = similar()
        assert status in (200, 503)
        assert status == 200 or headers["Retry-After"]
        until(lambda: similar()[0] != 503)
        status, _, answer = similar()
        assert status == 200
        found = answer["similar"]
        assert len(found) == 3
        assert [match["similarity"] for match in found] == sorted(
            (match["similarity"] for match in found), reverse=True
        )
        assert {match["label"] for match in found} <= {"across", "down"}
        content = base64.b64decode(found[0]["image"].partition("base64,")[2])
        assert Image.open(io.BytesIO(content)).size == (12, 12)
        if found[0]["similarity"] > 0.9999:  # it was itself trained on
            assert np.array_equal(Image.open(io.BytesIO(content)), Image.open(path))
    with running(trained.path, onsight.load, Access(host="0.0.0.0", open=True)) as served:
        assert not served.ask("GET", "/model")[2]["capabilities"]["similar"]
        assert served.ask("POST", "/similar", b"x", content_type="image/png")[0] == 501
