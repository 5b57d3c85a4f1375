"""random-vectors: the same for everyone, all different, labelled by their sum."""

import numpy as np

import onsight
from onsight.data.index import TEST, TRAIN
from onsight.data.sources.find import find_source
from onsight.data.sources.named import draw_vectors
from onsight.report.console import SilentReporter


def vectors_of(source):
    return np.stack([source.read(row) for row in range(len(source.index))])


def test_the_vectors_never_change():
    source = draw_vectors()
    pixels = vectors_of(source)
    assert pixels.shape == (200, 1, 5, 1)
    assert pixels.dtype == np.uint8
    assert pixels[0].ravel().tolist() == [95, 130, 194, 217, 207]
    assert (source.fingerprint, source.description) == (
        draw_vectors().fingerprint,
        source.description,
    )
    assert source.description.startswith("random vectors with train/test, 2 classes, 200")
    assert len(np.unique(pixels, axis=0)) == 200
    # Uniform bytes: mean 127.5, deviation of the mean of 1,000 is 2.3.
    assert abs(pixels.mean() - 127.5) < 10


def test_the_label_is_the_side_of_the_middle_that_the_sum_falls_on():
    source = draw_vectors()
    sums = vectors_of(source).reshape(200, 5).astype(int).sum(axis=1)
    names = [source.index.classes[label] for label in source.index.labels]
    assert names == ["high" if total > 637.5 else "low" for total in sums.tolist()]
    for split in (TRAIN, TEST):
        labels = source.index.labels[source.index.splits == split]
        assert len(labels) == 100
        assert 35 <= labels.sum() <= 65


def test_a_file_or_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_source("random-vectors").kind == "random-vectors"
    assert find_source("Random_Vectors").kind == "random-vectors"
    for label in ("a", "b"):
        (tmp_path / "random-vectors" / label).mkdir(parents=True)
        (tmp_path / "random-vectors" / label / "1.png").write_bytes(b"image")
    assert find_source("random-vectors").kind == "folders"


def test_a_linear_net_learns_what_the_label_says(tmp_path, real_report):
    run = onsight.train(
        "random-vectors",
        out=tmp_path / "run",
        model="linear",
        image_size="1x5",
        channels=1,
        epochs=40,
        batch_size=10,
        learning_rate=0.05,
        threads=1,
        reporter=SilentReporter(),
    )
    assert run.results["images"] == 100
    assert run.accuracy > 0.9
    # An image of one row does not break the page.
    page = run.report.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(list(run.path.glob("gallery/*.png"))) > 0
