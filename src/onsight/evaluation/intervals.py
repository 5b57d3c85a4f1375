"""Wilson's score interval of a share (JASA 22, 1927)."""

import math

Z_95 = 1.959963984540054


def wilson(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """The interval of a binomial share, at 95% by default; (0, 1) if count is 0."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == count else (centre + spread) / scale
    return low, high
