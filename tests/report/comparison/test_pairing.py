"""Which images are compared: planted runs whose common images are known."""

import pytest
from planted_runs import Said, digest_of, plant_run, said

from onsight.report.compare_pairs import LeftOut, pair_images, read_held_out


def paired(*folders):
    """The paths of the common images in each run, and what was left out."""
    runs = [read_held_out(folder, folder.name) for folder in folders]
    rows, left_out = pair_images(runs)
    paths = [
        [run.image_paths[row] for row in places]
        for run, places in zip(runs, rows.tolist(), strict=True)
    ]
    return paths, left_out


def without_digests(*rows):
    return [row._replace(digest=None) for row in rows]


def test_images_are_found_again_under_other_paths_and_in_another_order(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(6)]
    moved = [row._replace(path=f"C:/{row.path}") for row in reversed(rows)]
    run, other_run = plant_run(tmp_path / "one", rows), plant_run(tmp_path / "two", moved)
    (first, second), left_out = paired(run, other_run)
    assert first == [row.path for row in rows]
    assert second == [f"C:/{row.path}" for row in rows]
    assert left_out == (LeftOut(0, 0, 0),) * 2


def test_images_are_left_out_for_the_reason_that_holds(tmp_path):
    common = [said(1, "cat", "cat"), said(2, "dog", "cat")]
    trained, relabelled, absent = (
        said(3, "cat", "cat"),
        said(4, "cat", "dog"),
        said(5, "dog", "cat"),
    )
    other_label = relabelled._replace(label="dog")
    run = plant_run(tmp_path / "one", [*common, trained, relabelled, absent])
    other_run = plant_run(tmp_path / "two", [*common, other_label], seen=[trained.digest])
    (first, second), left_out = paired(run, other_run)
    assert first == second == [row.path for row in common]
    assert left_out == (LeftOut(seen=1, relabelled=1, absent=1), LeftOut(0, 1, 0))


def test_images_that_only_the_weights_of_one_run_learned_from_are_left_out(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(4)]
    run = plant_run(tmp_path / "one", rows, seen=[row.digest for row in rows[:3]])
    for split in ("test", "validation"):
        other_run = plant_run(tmp_path / split, rows, split=split)
        (first, _), left_out = paired(run, other_run)
        assert first == ["cat/3.png"]
        assert left_out == (LeftOut(3, 0, 0), LeftOut(3, 0, 0))


def test_equal_images_are_paired_one_to_one(tmp_path):
    copies = [said(1, "cat", "cat")._replace(path=path) for path in "abc"]
    run, other_run = plant_run(tmp_path / "one", copies), plant_run(tmp_path / "two", copies[:2])
    (first, second), left_out = paired(run, other_run)
    assert (first, second) == (["a", "b"], ["a", "b"])
    assert left_out == (LeftOut(0, 0, 1), LeftOut(0, 0, 0))


def test_only_what_every_run_held_out_is_common(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(5)]
    shares = {"one": rows[:4], "two": rows[1:], "three": rows[::2]}
    folders = [plant_run(tmp_path / name, share) for name, share in shares.items()]
    paths, left_out = paired(*folders)
    assert paths == [["cat/2.png"]] * 3
    assert left_out == (LeftOut(0, 0, 3), LeftOut(0, 0, 3), LeftOut(0, 0, 2))


def test_an_older_run_is_paired_by_path(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(4)]
    run = plant_run(tmp_path / "one", without_digests(*rows[:3]))
    other_run = plant_run(tmp_path / "two", rows[1:])
    (first, second), left_out = paired(run, other_run)
    assert first == second == ["cat/1.png", "cat/2.png"]
    assert left_out == (LeftOut(0, 0, 1), LeftOut(0, 0, 1))


def test_a_image_paired_by_path_that_the_other_was_trained_on_is_left_out(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(3)]
    run = plant_run(tmp_path / "one", without_digests(*rows), seen=[rows[0].digest])
    other_run = plant_run(tmp_path / "two", rows)
    (first, _), left_out = paired(run, other_run)
    assert first == ["cat/1.png", "cat/2.png"]
    assert left_out[1] == LeftOut(seen=1, relabelled=0, absent=0)


@pytest.mark.parametrize(
    ("size", "data", "common"), [(24, "pets", 2), (12, "pets", 0), (24, "other", 0)]
)
def test_another_decoding_is_paired_by_path_only_on_the_same_data(tmp_path, size, data, common):
    rows = [said(number, "cat", "cat") for number in range(2)]
    others = [row._replace(digest=digest_of(number + 50)) for number, row in enumerate(rows)]
    run = plant_run(tmp_path / "one", rows, data="pets")
    other_run = plant_run(tmp_path / "two", others, data=data, size=size)
    (first, _), _ = paired(run, other_run)
    assert len(first) == common


def test_validation_images_are_compared_although_both_runs_were_selected_with_them(tmp_path):
    rows = [said(number, "cat", "cat") for number in range(3)]
    seen = [row.digest for row in rows]
    folders = [
        plant_run(tmp_path / name, rows, seen=seen, split="validation") for name in ("one", "two")
    ]
    assert paired(*folders)[0][0] == [row.path for row in rows]


def test_a_cross_validated_run_is_compared_with_any_run_that_held_out_some_of_its_images(tmp_path):
    rows = [said(number, "cat", "cat")._replace(fold=number % 2) for number in range(6)]
    every = [row.digest for row in rows]
    folded = plant_run(tmp_path / "folded", rows, seen=every, split="folds")
    copied = plant_run(tmp_path / "copied", rows, seen=every, split="folds")
    tested = plant_run(
        tmp_path / "tested", [row._replace(fold=None) for row in rows[:2]], seen=every[2:5]
    )
    assert paired(folded, copied) == ([[row.path for row in rows]] * 2, (LeftOut(0, 0, 0),) * 2)
    for runs in ((folded, tested), (tested, folded)):
        paths, left_out = paired(*runs)
        assert paths == [["cat/0.png", "cat/1.png"]] * 2
        assert left_out[runs.index(folded)] == LeftOut(seen=3, relabelled=0, absent=1)
        assert left_out[runs.index(tested)] == LeftOut(0, 0, 0)


def test_keys_of_images_survive_the_model_file(tmp_path):
    digests = [digest_of(number) for number in range(20)] + ["0" * 16, "f" * 16]
    folder = plant_run(tmp_path / "run", [Said("a", "cat", "cat")], seen=digests)
    assert read_held_out(folder, "run").seen == set(digests)
