"""Search paths for a regular expression of the user's, in a process that can be ended.

Some expressions, such as (a+)+$, take exponential time on some paths, and a thread cannot be ended.
The process is this module: `python -m onsight.data.path_pattern`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from onsight.errors import ConfigError
from onsight.limits import PATTERN_SECONDS
from onsight_explain.python_process import child_command


def search_paths(flag: str, pattern: str, paths: Sequence[str]) -> list[str]:
    """Return what a pattern finds in each path: its first group, or the whole match if it has none.

    What is not found is empty. Raises ConfigError for a pattern that is invalid or takes too long.
    """
    named = f"{flag} {pattern[:100]}"
    try:
        done = subprocess.run(
            child_command("onsight.data.path_pattern"),
            input=json.dumps([pattern, [*paths]]).encode(),
            capture_output=True,
            timeout=PATTERN_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{named} takes too long: it was ended after {PATTERN_SECONDS:g} s. A repetition of a "
            "repetition, such as (a+)+, can take for ever: write it without"
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"{named} cannot be searched for: {error}") from error
    found, problem = json.loads(done.stdout)
    if problem:
        raise ConfigError(f"{named} is not a regular expression: {problem}")
    return list(found)


def _search(pattern: str, paths: Sequence[str]) -> tuple[list[str], str]:
    """Return what is found, and what is wrong with the pattern, if anything."""
    try:
        expression = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return [], str(error)
    group = 1 if expression.groups else 0
    matches = map(expression.search, paths)
    return [(match[group] or "") if match else "" for match in matches], ""


if __name__ == "__main__":
    print(json.dumps(_search(*json.load(sys.stdin))))
