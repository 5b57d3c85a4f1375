"""Ranks that other launchers started: each finds its GPU, and no two compute on one."""

import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from onsight.errors import DeviceError
from onsight.ranks import world as world_module
from onsight.ranks.meeting import RankInfo
from onsight.ranks.world import Ranks


@pytest.fixture
def join_on(monkeypatch):
    """Joins as many ranks as there are UUIDs, as threads that meet in one store."""
    store = dist.HashStore()
    monkeypatch.setattr(world_module, "meet", lambda rank_info: store)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *words, **named: None)

    def join(uuids):
        def facts(device):
            return types.SimpleNamespace(uuid=uuids[device.index])

        def one(rank):
            where = torch.device("cuda", rank)  # the number only tells the threads apart
            return Ranks(RankInfo(rank, len(uuids), rank, len(uuids), 0, "Slurm"), where)

        monkeypatch.setattr(torch.cuda, "get_device_properties", facts)
        with ThreadPoolExecutor(len(uuids)) as pool:
            under_way = [pool.submit(one, rank) for rank in range(len(uuids))]
        worlds = [done.result() for done in under_way if not done.exception()]
        for world in worlds:
            world.watchdog.leave()
        return [done.exception() for done in under_way]

    return join


def test_ranks_on_one_gpu_are_an_error_that_names_them(join_on):
    for error in join_on(["a1", "b2", "c3", "b2"]):
        assert isinstance(error, DeviceError)
        assert "ranks 1 and 3 have the same GPU (b2)" in str(error)
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("uuids", [["a1", "b2", "c3"], ["", ""]])
def test_gpus_of_their_own_or_without_a_uuid_are_fine(join_on, uuids):
    assert join_on(uuids) == [None] * len(uuids)
