"""How DATA is to be read, where it does not say so itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Reading:
    """What the user said about DATA.

    data_format: auto, torchvision (for a name) or a format of `find_source`; label: the column of a
    table that holds the labels; label_from: a regular expression that finds the label in a path;
    crop_boxes: each annotated box is an image; shard_cache_gigabytes: for copies of remote
    shards, 0 for half of what the disk has free.
    """

    data_format: str = "auto"
    label: str = ""
    label_from: str = ""
    crop_boxes: bool = False
    shard_cache_gigabytes: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Reading":
        """As a config says, which may be an older version's."""
        return cls(**{one.name: config[one.name] for one in fields(cls) if one.name in config})


AS_FOUND = Reading()
