"""The command `onsight models`."""

from onsight.commands.options import Json


def models(pattern: str = "", /, *, json_: Json = False) -> None:
    """List models with their cost, and say whose weights are here without a network.

    Parameters
    ----------
    pattern
        Show names that contain this text, or match it if it has * or ?; '*' shows all. Empty:
        Onsight's own models, those with weights here, and some of timm's worth trying.
    """
    from rich.console import Console

    from onsight.report.model_list import list_models

    list_models(pattern, json_, Console(highlight=False, soft_wrap=True))
