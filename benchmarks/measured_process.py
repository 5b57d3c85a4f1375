"""Run a command and print, as JSON, how it ended, its seconds and its peak memory.

    python benchmarks/measured_process.py SECONDS STDOUT STDERR COMMAND ...

SECONDS is the time limit; STDOUT and STDERR are files for the output. Linux counts the memory that
a parent holds when it starts a child as the child's, so this is a separate process that imports
little.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    limit, out, err, *command = sys.argv[1:]
    begun = time.perf_counter()
    with Path(out).open("wb") as stdout, Path(err).open("wb") as stderr:
        try:
            done = subprocess.run(
                command, stdout=stdout, stderr=stderr, timeout=float(limit), check=False
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.perf_counter() - begun
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"code": code, "seconds": seconds, "peak_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
