"""Python imports this first if its folder is on PYTHONPATH: writes down each connection."""

import os
import sys
from typing import Any

_LOCAL = ("127.", "::1", "localhost")


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "socket.sendto"):
        return
    address = arguments[1]
    if isinstance(address, tuple) and not str(address[0]).startswith(_LOCAL):
        with open(os.environ["WEATHER_CONNECTIONS"], "a", encoding="utf-8") as file:
            file.write(f"{address}\n")


if "WEATHER_CONNECTIONS" in os.environ:
    sys.addaudithook(_note)
