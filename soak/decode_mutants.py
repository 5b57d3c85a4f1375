"""Decodes so many mutants of the images of one format, and prints what came of it as JSON.

    python soak/decode_mutants.py png 1000

Run as a process of its own, so that its peak memory and its end tell about the decoder alone.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "data"))

from odd_images import odd_images

from onsight.data.decode import decode
from onsight.errors import ImageError

_RUNS = (1, 2, 4, 16, 64)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits, bytes, numbers, cuts, repetitions and exchanged parts."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place, run = rng.randrange(len(changed)), rng.choice(_RUNS)
        kind = rng.randrange(6)
        if kind == 0:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place : place + run] = rng.randbytes(run)
        elif kind == 2:
            changed[place : place + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff"))
        elif kind == 3 and len(changed) > 64:
            del changed[place : place + run]
        elif kind == 4:
            changed[place:place] = changed[place : place + run] * rng.randint(1, 50)
        else:
            other = rng.randrange(len(changed))
            changed[place : place + run] = changed[other : other + run]
    return bytes(changed)


def time_decoding(data: bytes) -> tuple[float, bool]:
    """Return the seconds that decoding took, and whether it ended in pixels."""
    begun = time.perf_counter()
    try:
        decode(data)
    except ImageError:
        return time.perf_counter() - begun, False
    return time.perf_counter() - begun, True


def peak_megabytes() -> float:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Decode the mutants and print how many were used, the slowest, and the growth in memory."""
    form, count = sys.argv[1], int(sys.argv[2])
    samples = [odd.data for odd in odd_images() if odd.name.startswith(form)]
    rng, used, slowest = random.Random(form), 0, 0.0
    loaded = peak_megabytes()
    for number in range(count):
        mutant = mutate(samples[number % len(samples)], rng)
        seconds, decoded = time_decoding(mutant)
        if seconds > slowest:  # a busy machine delays any, but hardly the same one again
            seconds = min(seconds, time_decoding(mutant)[0])
        used += decoded
        slowest = max(slowest, seconds)
    grown = peak_megabytes() - loaded
    print(json.dumps({"used": used, "slowest_seconds": slowest, "grown_megabytes": grown}))


if __name__ == "__main__":
    main()
