"""The process of a rank launched by Onsight: calls `train` with arguments read as JSON."""

import json
import os
import signal
import sys
import time
import traceback
from typing import NoReturn

from onsight.errors import OnsightError, RankLost


def main() -> NoReturn:
    """Train; on failure, leave a message for the launcher, which reports it once for all ranks."""
    # KeyboardInterrupt while torch is imported would surface as errors about its modules.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from onsight.ranks.watchdog import report_to_launcher
    from onsight.training.run import train

    if os.environ["RANK"] == "0":  # the others may be in an uninterruptible call
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        request = json.loads(sys.argv[1])
        begun = request.pop("begun")  # by the monotonic clock, which a machine's processes share
        train(**request, spent=lambda: time.monotonic() - begun)
    except OnsightError as error:
        report_to_launcher(str(error), error.exit_code, lost=isinstance(error, RankLost))
        _end(error.exit_code)
    except KeyboardInterrupt:
        _end(130)
    except Exception:
        report_to_launcher(traceback.format_exc().rstrip(), 1, bug=True)
        _end(1)
    sys.exit(0)


def _end(exit_code: int) -> NoReturn:
    """Exit without closing connections to other ranks, as torch may abort if a rank is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
