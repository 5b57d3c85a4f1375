"""What --try takes, and what it refuses with which words."""

import pytest

from onsight.errors import ConfigError
from onsight.sweeper.plan import make_combinations, plan_runs, read_space


def test_every_combination_once_with_the_fields_own_types():
    space = read_space(["learning-rate=1e-3, 0.003", "model=lenet,compact", "flip=true,false"])
    assert space == {
        "learning_rate": [0.001, 0.003],
        "model": ["lenet", "compact"],
        "flip": [True, False],
    }
    tried = make_combinations(space)
    assert len(tried) == len({tuple(combination.items()) for combination in tried}) == 8
    assert tried[1] == {"learning_rate": 0.001, "model": "lenet", "flip": False}


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([], "nothing to try"),
        (["learning_rate"], "write a field, ="),
        (["learning_rate="], "write a field, ="),
        (["learning_rat=0.1"], "Did you mean learning_rate"),
        (["learning_rate=0.1,much"], "--learning-rate much"),
        (["learning_rate=0.1,-1"], "greater than or equal to 0"),
        (["optimizer=sgd,,adam"], "a value before or after a comma is missing"),
        (["learning_rate=0.001,1e-3"], "1e-3 is listed twice"),
        (["seed=1", "seed=2"], "--try seed is given twice"),
        (["test_fraction=0.1,0.2"], "same held-out images"),
        (["folds=1,5"], "same held-out images"),
        (["log=none,tensorboard"], "no difference to a model"),
    ],
)
def test_what_cannot_be_tried_is_explained(tries, expected):
    with pytest.raises(ConfigError, match=expected):
        read_space(tries)


def test_folders_have_names_that_any_file_system_takes_and_that_never_meet(tmp_path):
    spec = "my.models:" + 200 * "x"
    settings = [{"model": f"{spec}{end}", "weights": "../a b/c.pth"} for end in "ab"]
    names = [run.name for run in plan_runs(tmp_path, settings, {})]
    assert len(set(names)) == 2
    assert all(len(name) < 100 and not set(name) & set(':/\\ *?"<>|') for name in names)
