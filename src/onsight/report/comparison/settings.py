"""The settings in which runs differ."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from onsight.report.comparison.held_out import HeldOut

_PLACES = {
    "cache_folder",
    "log",
    "switches",
}  # say nothing about the model; plan.json has the switches


class Setting(NamedTuple):
    """A setting and its value in each run, None where a run does not know it."""

    name: str
    values: tuple[Any, ...]


def differing_settings(runs: Sequence[HeldOut]) -> list[Setting]:
    """DATA and the fields of the configs that are not the same in all runs."""
    names = dict.fromkeys(name for run in runs for name in run.config)
    settings = [
        Setting("data", tuple(run.data for run in runs)),
        *(Setting(name, tuple(run.config.get(name) for run in runs)) for name in names),
    ]
    return [
        setting
        for setting in settings
        if setting.name not in _PLACES and any(one != setting.values[0] for one in setting.values)
    ]
