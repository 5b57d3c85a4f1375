"""`python -m onsight` is the `onsight` command."""

from onsight.cli import main

if __name__ == "__main__":
    main()
