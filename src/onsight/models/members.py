"""The members of a blend, by name: in its model file, and as `--member NAME` chooses one."""

import re
from collections.abc import Iterable

from onsight.errors import ModelError, did_you_mean

MOST_MEMBERS = 3
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


def is_member_name(name: str) -> bool:
    """Return whether a member can have this name."""
    return _NAME.fullmatch(name) is not None


def member_prefix(name: str) -> str:
    """Return what precedes the names of a member's tensors in a model file."""
    return f"members/{name}/"


def check_member(member: str, names: Iterable[str], source: object) -> None:
    """Raise ModelError unless a model has a member of this name.

    Args:
        names: The names of the model's members; none if it is one network.
        source: The path of the model.
    """
    names = list(names)
    if not names:
        raise ModelError(
            f"{source} is a single network, not a blend, so it has no member '{member}'"
        )
    if member not in names:
        raise ModelError(
            f"{source} has no member '{member}'; its members are {', '.join(names)}."
            f"{did_you_mean(member, names)}"
        )
