"""`python -m onsight_explain` is the command `onsight-explain`."""

from onsight_explain.cli import main

main()
