"""The command `onsight recipes`."""

from onsight.config import read_about, recipe_names


def recipes() -> None:
    """List the ready-made configs for --recipe and the results they reproduce."""
    from rich.console import Console

    from onsight.report.recipes import print_recipe

    console = Console(highlight=False, soft_wrap=True)
    for name in recipe_names():
        print_recipe(name, read_about(name), console)
