"""What a sweep tries: config fields with some values each, and every combination of them."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from onsight.config import Config, explain_unknown, make_config
from onsight.errors import ConfigError

Settings = dict[str, Any]
Space = dict[str, list[Any]]

_SPLITTING = {
    "crop_boxes",
    "data_format",
    "folds",
    "group_by",
    "label",
    "label_from",
    "split_near_duplicates",
    "test_fraction",
    "validation_fraction",
}
_NOT_TRIED = {"cache_folder", "log", "switches"}  # say nothing about the model


def read_space(tries: Sequence[str]) -> Space:
    """The fields and values in texts such as `learning_rate=0.001,0.003`. Raises ConfigError."""
    space: Space = {}
    for text in tries:
        name, values = _read(text)
        if name in space:
            raise ConfigError(f"--try {name} is given twice; list all its values in one")
        space[name] = values
    if not space:
        raise ConfigError("nothing to try; name a field and its values: --try model=lenet,compact")
    return space


def combinations(space: Space) -> Iterator[Settings]:
    """Every combination of the values, the last field's changing fastest."""
    for values in product(*space.values()):
        yield dict(zip(space, values, strict=True))


def _read(text: str) -> tuple[str, list[Any]]:
    name, found, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not found or not listed.strip():
        raise ConfigError(f"--try {text}: write a field, = and values, as in model=lenet,compact")
    _check_name(name)
    words = [word.strip() for word in listed.split(",")]
    if "" in words:
        raise ConfigError(f"--try {text}: a value beside a comma is missing")
    values = [getattr(make_config({name: word}), name) for word in words]
    twice = [word for place, word in enumerate(words) if values[place] in values[:place]]
    if twice:
        raise ConfigError(f"--try {text}: {twice[0]} is there twice")
    return name, values


def _check_name(name: str) -> None:
    if name not in Config.model_fields:
        raise ConfigError(
            f"--try {name}: {explain_unknown(name)} `onsight train --help` lists the fields"
        )
    if name in _SPLITTING:
        raise ConfigError(
            f"--try {name}: runs are compared on the same held-out images, and this changes "
            f"which these are. Give it once, as --{name.replace('_', '-')}"
        )
    if name in _NOT_TRIED:
        raise ConfigError(f"--try {name}: this makes no difference to a model")
