"""Where settings come from and go to: TOML files of the user, recipes, a run's config.toml."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from onsight.config import PLACES, Config, drop_retired
from onsight.errors import ConfigError, DataError, did_you_mean
from onsight.files import write_atomically
from onsight.untrusted import check_value, read_text


def config_layers(
    recipe: str | None, config_file: str | Path | None, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers for make_config: recipe, file, then the given fields, which win.

    Raises ConfigError, also for a file that says where to write: it may be somebody else's.
    """
    read = read_config_file(Path(config_file)) if config_file else {}
    refuse_places(read, config_file, fields)
    return [read_recipe(recipe) if recipe else {}, read, fields]


def refuse_places(
    read: Mapping[str, Any], path: str | Path | None, fields: Mapping[str, Any]
) -> None:
    """Raise ConfigError if a file says where to write and the given fields do not."""
    for name in PLACES:
        place = read.get(name, "")
        if place not in ("", "none") and name not in fields:
            raise ConfigError(
                f"{path} names a place to write to, {name} = {place!r}, and a file does not "
                f"decide that; if you want it, add --{name.replace('_', '-')} {place}"
            )


def read_config_file(path: Path) -> dict[str, Any]:
    """Read the fields of a TOML file, perhaps saved by an older version. Raises ConfigError."""
    try:
        fields = tomllib.loads(read_text(path))
        check_value(fields)
        return drop_retired(fields)
    except DataError as error:
        raise ConfigError(f"the config {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def save_config(config: Config, path: Path) -> None:
    """Write a config where `--config` can read it again.

    For several networks, only what has been set: what is left open differs between them.
    """
    fields = config.model_dump(exclude_unset=config.model == "auto")
    write_atomically(path, tomli_w.dumps(fields).encode())


def recipe_names() -> list[str]:
    """List the ready-made configs in the package."""
    folder = resources.files("onsight") / "recipes"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """Read the fields of a recipe. Raises ConfigError, which lists the recipes."""
    fields = _load_recipe(name)
    del fields["about"]
    return fields


def read_about(name: str) -> dict[str, str]:
    """Read a recipe's description: data, reproduces, published, measured and stand_in.

    data is the DATA it was made for, published are the figures of its source, measured those of
    this project, and stand_in is other data it runs on. Raises ConfigError like read_recipe.
    """
    about: dict[str, str] = _load_recipe(name)["about"]
    return about


def _load_recipe(name: str) -> dict[str, Any]:
    names = recipe_names()
    if name not in names:
        raise ConfigError(
            f"no recipe '{name}'.{did_you_mean(name, names)} Available: {', '.join(names)}"
        )
    text = (resources.files("onsight") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
