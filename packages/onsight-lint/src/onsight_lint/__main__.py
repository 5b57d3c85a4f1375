"""`python -m onsight_lint` is the `onsight-lint` command."""

import sys

from onsight_lint.cli import main

if __name__ == "__main__":
    sys.exit(main())
