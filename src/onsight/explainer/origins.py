"""Says where settings come from that the user has not set now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onsight.choice import Choice
from onsight.report.console import Reporter

_BY_USER = "set by you"


class OriginReporter(Reporter):
    """A reporter that knows where settings come from.

    Args:
        origins: The reason to give instead of "set by you", by config field.
    """

    def __init__(self, origins: Mapping[str, str]) -> None:
        super().__init__()
        self.origins = origins

    def choice(self, name: str, choice: Choice[Any], *, is_detail: bool = True) -> None:
        """Print a choice with its reason."""
        reason = choice.reason.replace(_BY_USER, self.origins.get(name, _BY_USER))
        super().choice(name, replace(choice, reason=reason), is_detail=is_detail)
