"""The server's log: a line of JSON for each event on stderr, without any image or file name."""

import json
import logging
import sys
from datetime import UTC, datetime


def log(event: str, **facts: object) -> None:
    """Write one line: the time, the event and its facts."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": time, "event": event, **facts}, default=str)
    sys.stderr.write(line + "\n")  # whose buffer ends with a line


class JsonLines(logging.Handler):
    """Brings what libraries log into the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, with the kind of its exception."""
        facts = {"error": repr(record.exc_info[1])} if record.exc_info else {}
        log("library", level=record.levelname, message=record.getMessage(), **facts)
