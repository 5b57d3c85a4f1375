"""One rank of a run that Onsight launched: calls `train` with arguments given as JSON."""

import json
import os
import signal
import sys
import time
import traceback
from typing import NoReturn

from onsight.errors import OnsightError, RankLost


def main() -> NoReturn:
    """Train; on failure, leave a message for the launcher, which reports it once."""
    # An interrupt while torch is imported would surface as errors about half-imported modules.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from onsight.training.ranks.watchdog import leave_message
    from onsight.training.run import train

    if os.environ["RANK"] == "0":  # the others may be in a call that Python cannot interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        request = json.loads(sys.argv[1])
        begun = request.pop("begun")  # by a clock that all processes of a machine share
        train(**request, spent=lambda: time.monotonic() - begun)
    except OnsightError as error:
        leave_message(str(error), error.exit_code, lost=isinstance(error, RankLost))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        leave_message(traceback.format_exc().rstrip(), 1, bug=True)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
