"""Says what a run's network starts from, and what its weights were trained on."""

from collections.abc import Callable

from onsight.config import Config
from onsight.models.catalog import expected_input
from onsight.models.weights import LoadedWeights
from onsight.report.console import Reporter


def announcing_weights(
    config: Config, size: tuple[int, int], reporter: Reporter
) -> Callable[[LoadedWeights], None]:
    """A function that reports loaded weights, for images of this (height, width)."""

    def announce(loaded: LoadedWeights) -> None:
        reporter.say(loaded.sentence)
        expected = expected_input(config.model, config.weights)
        differences = expected.differences(size, config.fit) if expected else ""
        if differences:
            reporter.say(differences)

    return announce
