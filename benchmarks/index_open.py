"""How long does a known set of a million pictures take to open, and how much memory?

    python benchmarks/index_open.py [--pictures 1000000]

Builds a pack of one-pixel pictures once (so that the table is what counts), then opens it in a
fresh process. The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from onsight.data.decode import PictureFormat
from onsight.data.index import Index, Row
from onsight.data.pack import open_pack
from onsight.data.packing import Job
from onsight.data.sources.source import Source

ONE_PIXEL = PictureFormat(1, 1, 1)

OPEN = """
import json, sys, time
from pathlib import Path
from onsight.data.pack import _read
from onsight.data.decode import PictureFormat
from onsight.hardware.usage import peak_memory_bytes
before = peak_memory_bytes()
begun = time.perf_counter()
pack = _read(Path(sys.argv[1]), sys.argv[2], PictureFormat(1, 1, 1))
names = [pack.index.locators[row] for row in (0, len(pack) // 2, len(pack) - 1)]
seconds = time.perf_counter() - begun
print(json.dumps({"pictures": len(pack), "open_seconds": seconds,
                  "memory_bytes": peak_memory_bytes() - before}))
"""


def make_source(count: int) -> Source:
    rows = [
        Row(f"class-{number % 1000:03d}/some/folder/picture-{number:07d}.jpg", f"c{number % 1000}")
        for number in range(count)
    ]

    def read(row: int) -> np.ndarray:
        return np.full((1, 1, 1), row % 251, np.uint8)

    return Source("made", Path("/made"), Index.of(rows), read, "made", "made")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=1_000_000)
    count = parser.parse_args().pictures
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        open_pack(Job(make_source(count), ONE_PIXEL, threads=2), Path(folder))
        built = time.perf_counter() - begun
        (place,) = (Path(folder) / "packs").iterdir()
        key = json.loads((place / "pack.json").read_text())["key"]
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(place), key],
            capture_output=True,
            text=True,
            check=True,
        )
    print(json.dumps({**json.loads(done.stdout), "build_seconds": built}))


if __name__ == "__main__":
    main()
