"""Which setting makes a peer fastest here? The other benchmarks use this to try each one briefly.

First threads, how long they spin at barriers, and loader workers, together, because they share the
cores; then memory layout, and workers that outlive an epoch. The best two are tried once more, so
that one lucky moment on a shared machine does not decide.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

SPIN = "2000"  # what Onsight sets on a busy machine; peers may use it too


@dataclass(frozen=True)
class Setting:
    """How a contender is started."""

    threads: int
    workers: int = 0
    persistent_workers: int = 0
    channels_last: int = 0
    spin: str = ""

    def words(self) -> list[str]:
        named = {name: value for name, value in asdict(self).items() if name != "spin"}
        return [w for n, v in named.items() for w in (f"--{n.replace('_', '-')}", str(v))]

    def environment(self) -> dict[str, str]:
        """Spinning must be set before torch is loaded, so it is set in the environment."""
        former = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        return former | ({"GOMP_SPINCOUNT": self.spin} if self.spin else {})

    def __str__(self) -> str:
        parts = [f"{self.threads} threads"]
        if self.workers:
            parts.append(f"{self.workers} workers" + " persistent" * self.persistent_workers)
        parts += ["channels last"] * self.channels_last + ["short spin"] * bool(self.spin)
        return ", ".join(parts)


def tune(
    rate: Callable[[Setting], float], workers: tuple[int, ...], threads: tuple[int, ...]
) -> tuple[Setting, float]:
    """The best setting and its rate."""
    tried: dict[Setting, list[float]] = {}

    def best() -> Setting:
        return max(tried, key=lambda setting: sum(tried[setting]) / len(tried[setting]))

    def attempt(setting: Setting) -> None:
        tried.setdefault(setting, []).append(rate(setting))

    # One thread has no barrier; for several, the machine's load decides whether short spins pay.
    spins = [(count, spin) for count in threads for spin in (("", SPIN) if count > 1 else ("",))]
    for count, spin in spins:
        for number in workers:
            attempt(Setting(count, number, spin=spin))
    attempt(replace(best(), channels_last=1))
    if best().workers:
        attempt(replace(best(), persistent_workers=1))
    ranked = sorted(tried, key=lambda setting: tried[setting][0], reverse=True)
    for setting in ranked[:2]:
        attempt(setting)
    # Only those tried twice may win: the others were slower in their only try.
    chosen = max(ranked[:2], key=lambda setting: sum(tried[setting]))
    return chosen, sum(tried[chosen]) / len(tried[chosen])
