"""Several processes that build the same pack at once."""

import multiprocessing
from pathlib import Path

import numpy as np

from onsight.data.fit import ImageFormat
from onsight.data.index import Index, Row
from onsight.data.pack import open_pack
from onsight.data.packing import PackJob
from onsight.data.sources.source import Source


def build(folder):
    """Build a pack six times, each time of other images."""
    index = Index.of([Row(f"p{n}", str(n % 2)) for n in range(50)])
    for turn in range(6):

        def read(row, turn=turn):
            return np.full((4, 4, 1), row + turn, np.uint8)

        source = Source("test", Path("/data"), index, read, str(turn), "a test")
        pack = open_pack(PackJob(source, ImageFormat(4, 4, 0)), Path(folder))
        assert len(pack) == 50


def test_processes_that_pack_the_same_data_wait_for_each_other(tmp_path):
    context = multiprocessing.get_context("forkserver")  # imports once for all of them
    context.set_forkserver_preload(["onsight.data.pack"])
    processes = [context.Process(target=build, args=(str(tmp_path),)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(list((tmp_path / "packs").iterdir())) == 1
