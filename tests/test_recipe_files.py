"""Every recipe says what it is and what it reproduces, and is a config."""

from importlib import resources

import pytest

from onsight.config import make_config
from onsight.config_files import read_about, read_recipe, recipe_names
from onsight.data.sources.find import find_source
from onsight.data.sources.named import NAMES
from onsight.errors import ConfigError
from onsight.models.catalog import make_model

RECIPES = ("cifar10-lenet", "cifar10-quick", "data-parallel", "dogs-vs-cats", "fast")
HEADINGS = ("# Reproduces: ", "# Source: ", "# Published: ", "# Measured: ", "# Command: ")


def text_of(name):
    return (resources.files("onsight") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def test_the_recipes_there_are():
    assert tuple(recipe_names()) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_it_begins_with_what_it_reproduces_and_how_that_went(name):
    comment = text_of(name).partition("\n\n")[0].splitlines()
    assert all(line.startswith("# ") for line in comment)
    found = [line for line in comment if not line.startswith("#  ")]
    assert len(found) == len(HEADINGS)
    for line, heading in zip(found, HEADINGS, strict=True):
        assert line.startswith(heading)
    assert found[-1] == f"# Command: onsight train --recipe {name}"


@pytest.mark.parametrize("name", RECIPES)
def test_it_says_of_itself_what_the_list_shows(name):
    about = read_about(name)
    assert set(about) == {"data", "reproduces", "published", "measured", "stand_in"}
    for value in about.values():
        assert isinstance(value, str)
        assert value
        assert "\n" not in value
    assert about["data"] in NAMES
    before, command = about["stand_in"].split(": ")
    assert before
    assert command.startswith(f"onsight train --recipe {name} --data ")


@pytest.mark.parametrize("name", RECIPES)
def test_its_fields_are_those_of_a_config_and_fit_its_network(name):
    fields = read_recipe(name)
    config = make_config(fields)
    assert {field: getattr(config, field) for field in fields} == fields
    height, width = config.size or (28, 28)  # fast leaves the size to the data
    channels = 3 if config.channels == "auto" else int(config.channels)
    make_model(config.model, (channels, height, width), 2)


def test_settings_of_the_sources():
    def settings(name, *fields):
        config = make_config(read_recipe(name))
        return tuple(getattr(config, field) for field in fields)

    course = ("model", "epochs", "batch_size", "optimizer", "learning_rate", "momentum")
    assert settings("cifar10-lenet", *course) == ("lenet", 10, 4, "sgd", 0.001, 0.9)
    assert settings("cifar10-quick", *course) == ("quick", 10, 64, "sgd", 0.01, 0.0)
    assert settings("dogs-vs-cats", *course)[:-1] == ("conv3", 5, 100, "adam", 0.001)
    assert settings("data-parallel", *course)[:4] == ("linear", 1, 30, "sgd")
    assert settings("dogs-vs-cats", "loss", "size", "channels") == ("mse", (50, 50), "1")
    assert settings("dogs-vs-cats", "validation_fraction", "test_fraction") == (0.0, 0.1)
    assert settings("cifar10-quick", "test_each_epoch", "keep_epochs") == (True, True)
    assert settings("data-parallel", "ranks", "size") == (2, (1, 5))
    for name in set(RECIPES) - {"fast"}:
        assert settings(name, "flip", "translate", "validation_fraction") == (False, 0.0, 0.0)
        scaling = "half" if name == "cifar10-lenet" else "none"
        assert settings(name, "normalize") == (scaling,)


def test_the_fast_recipe_tells_its_views_beside_and_keeps_its_last_epoch():
    config = make_config(read_recipe("fast"))
    assert (config.schedule, config.validation_fraction) == ("linear", 0.0)
    assert config.recalibrate_norm == "on"
    assert config.tta != "one"
    assert (config.precision, config.threads, config.compile) == ("auto", 0, "auto")  # measured


def test_the_recipe_on_vectors_needs_nothing_else(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len(find_source(read_about("data-parallel")["data"]).index) == 200


def test_a_name_that_is_none():
    for read in (read_recipe, read_about):
        with pytest.raises(ConfigError, match=r"no recipe 'dogs'\..*Available: cifar10-lenet, "):
            read("dogs")
