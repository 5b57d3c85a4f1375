"""`python -m onsight_explain` is the command `onsight-explain`."""

from onsight_explain.cli import main

if __name__ == "__main__":
    main()
