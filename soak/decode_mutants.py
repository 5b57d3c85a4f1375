"""Decode a number of mutated images of one format, and print a summary as JSON.

    python soak/decode_mutants.py png 1000

It runs in its own process, so that peak memory and crashes are the decoder's.
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
    """Make one to four changes: flip bits; overwrite, cut, repeat or copy parts."""
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
    """Return the seconds that decoding took, and whether it succeeded."""
    begun = time.perf_counter()
    try:
        decode(data)
    except ImageError:
        return time.perf_counter() - begun, False
    return time.perf_counter() - begun, True


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Decode the mutants; print the number decoded, the slowest time and the memory growth."""
    form, count = sys.argv[1], int(sys.argv[2])
    samples = [odd.data for odd in odd_images() if odd.name.startswith(form)]
    rng, used, slowest = random.Random(form), 0, 0.0
    loaded = peak_megabytes()
    for number in range(count):
        mutant = mutate(samples[number % len(samples)], rng)
        seconds, decoded = time_decoding(mutant)
        if seconds > slowest:  # a busy machine rarely delays the same one twice
            seconds = min(seconds, time_decoding(mutant)[0])
        used += decoded
        slowest = max(slowest, seconds)
    grown = peak_megabytes() - loaded
    print(json.dumps({"used": used, "slowest_seconds": slowest, "grown_megabytes": grown}))


if __name__ == "__main__":
    main()
