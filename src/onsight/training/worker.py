"""One rank of a run that Onsight started: the same `train`, its arguments given as JSON."""

import json
import sys
from typing import NoReturn

from onsight.errors import OnsightError, RankLost
from onsight.training.run import train
from onsight.training.watch import leave_message


def main() -> NoReturn:
    """Train; on failure leave the message for the launcher, which tells it once."""
    try:
        train(**json.loads(sys.argv[1]))
    except OnsightError as error:
        leave_message(str(error), error.exit_code, isinstance(error, RankLost))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
