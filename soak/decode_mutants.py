"""Decodes so many mutants of the pictures of one format, and prints what came of it as JSON.

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

from odd_pictures import odd_pictures

from onsight.data.decode import decode
from onsight.errors import PictureError

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


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    form, count = sys.argv[1], int(sys.argv[2])
    samples = [odd.data for odd in odd_pictures() if odd.name.startswith(form)]
    rng, used, slowest = random.Random(form), 0, 0.0
    loaded = peak_megabytes()
    for number in range(count):
        mutant = mutate(samples[number % len(samples)], rng)
        begun = time.perf_counter()
        try:
            decode(mutant)
            used += 1
        except PictureError:
            pass
        slowest = max(slowest, time.perf_counter() - begun)
    grown = peak_megabytes() - loaded
    print(json.dumps({"used": used, "slowest_seconds": slowest, "grown_megabytes": grown}))


if __name__ == "__main__":
    main()
