"""Are several ranks worth it? The run's own step, timed with all of them and in one process."""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.training.autotune.trial import Trial
from onsight.training.pictures.training_data import TrainingData
from onsight.training.ranks.world import World

_ROUNDS = 3
_WINDOW_SECONDS = 0.15  # of each way in a round, but at least a step
_MOST_STEPS = 50


@dataclass(frozen=True)
class RankTimes:
    """Seconds of a step: of all ranks together; of the slowest rank's share, sending nothing; of
    the whole batch in one process with the threads of all; and those spent waiting for pictures.
    """

    together: float
    apart: float
    alone: float
    waiting: float


def compare_ranks(config: Config, data: TrainingData, world: World) -> Choice[int]:
    """The number of ranks, with how fast they are against one process, and what they lose.

    Every rank takes part, and all get the same.
    """
    batch = min(config.batch_size, len(data.dataset.ids(TRAIN)))
    found = _measure(config, data, world, batch)
    rates = [batch / seconds for seconds in (found.together, found.alone)]
    reason = (
        f"{rates[0]:,.0f} images/s together, {rates[1]:,.0f} in one process with as many threads: "
        f"{rates[0] / rates[1]:.2f} times as fast; {_loss(found, world.size)}"
    )
    return Choice(world.size, reason, rates[0])


def _loss(found: RankTimes, ranks: int) -> str:
    """What the ranks lose most by, of a step."""
    losses = {
        "sending gradients and waiting for the slowest rank": found.together - found.apart,
        "waiting for pictures": found.waiting,
        "shares of a batch that are too small to compute well": found.apart
        - found.waiting
        - found.alone / ranks,
    }
    name = max(losses, key=lambda one: losses[one])
    if losses[name] <= 0:
        return "nothing is lost by sharing"
    share = min(1.0, losses[name] / found.together)
    return f"of each step of {1000 * found.together:.1f} ms, {100 * share:.0f}% is {name}"


def _measure(config: Config, data: TrainingData, world: World, batch: int) -> RankTimes:
    """Time the three ways in turn, after a first step of each."""
    plain = config.model_copy(update={"compile": "off", "cuda_graph": "off", "accumulate": 1})
    # Ranks of one machine share its threads; one process would have them all.
    every = plain.model_copy(update={"threads": plain.threads * world.local_size})
    shared = Trial(plain, data, world, (world.rank, world.size))
    own = Trial(plain, data, None, (world.rank, world.size))
    together, apart = shared.at(batch), own.at(batch)
    together(1), apart(1)
    alone = Trial(every, data).at(batch) if world.is_main else None
    first_alone = _on_first(world, "warm-up", lambda: alone(1) if alone else 0.0)
    steps = {
        "together": _steps(world.agree(together(1))),
        "apart": _steps(world.agree(apart(1))),
        "alone": _steps(first_alone),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    shared.wait_seconds, count = 0.0, 0
    for _ in range(_ROUNDS):
        seconds["together"].append(together(steps["together"]) / steps["together"])
        count += steps["together"]
        seconds["apart"].append(_slowest(world, apart(steps["apart"]) / steps["apart"]))
        seconds["alone"].append(
            _on_first(
                world, "alone", lambda: alone(steps["alone"]) / steps["alone"] if alone else 0.0
            )
        )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    shared.flush()
    return RankTimes(
        world.agree(medians["together"]),
        medians["apart"],
        medians["alone"],
        _slowest(world, shared.wait_seconds / count),
    )


def _steps(step_seconds: float) -> int:
    return max(1, min(_MOST_STEPS, round(_WINDOW_SECONDS / step_seconds)))


def _slowest(world: World, seconds: float) -> float:
    return max(float(line) for line in world.gather("seconds of a rank", repr(seconds)))


def _on_first(world: World, what: str, measure: Callable[[], float]) -> float:
    """What the first rank measures while the others wait."""
    said = world.broadcast(f"seconds {what}", lambda: json.dumps(measure()))
    return float(json.loads(said))
