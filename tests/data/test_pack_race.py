"""Several processes that build the same pack at once."""

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from onsight.data.decode import PictureFormat
from onsight.data.index import Index, Row
from onsight.data.pack import open_pack
from onsight.data.packing import Job
from onsight.data.sources.source import Source

index = Index.of([Row(f"p{n}", str(n % 2)) for n in range(50)])
for turn in range(15):
    def read(row):
        return np.full((4, 4, 1), row + turn, np.uint8)
    source = Source("test", Path("/data"), index, read, str(turn), "a test")
    pack = open_pack(Job(source, PictureFormat(4, 4, 0)), Path(sys.argv[1]))
    assert len(pack) == 50
"""


def test_processes_that_pack_the_same_data_wait_for_each_other(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in processes:
        _, reporter = process.communicate(timeout=120)
        assert process.returncode == 0, reporter.decode()
    assert len(list((tmp_path / "packs").iterdir())) == 1
