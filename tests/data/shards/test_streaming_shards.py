"""Training streams from shards: exact epochs over ranks, resumed bit for bit, read in order."""

import numpy as np
import pytest
import torch
from faulty_server import serving
from shard_files import make_shards

from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.index import TEST, TRAIN
from onsight.data.loader import Loader, find_positions
from onsight.data.sources.find import find_source

CPU = torch.device("cpu")


@pytest.fixture
def dataset(memory, tmp_path):
    for name, content in make_shards(12, 10).items():
        memory.pipe_file(f"/set/{name}", content)
    return opened("memory://set", tmp_path)


def opened(url, cache):
    config = make_config({"residency": "stream", "folds": "1"})
    return open_dataset(find_source(url, cache_folder=cache), config, (6, 6), cache, 2)


def loader(dataset, rank=0, ranks=1):
    return Loader(dataset.images, dataset.ids(TRAIN), 16, CPU, rank, ranks)


def ids_of(batches):
    return torch.cat([batch.ids for batch in batches])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_image_once_an_epoch_over_all_ranks(dataset, ranks):
    for epoch in range(2):
        seen = torch.cat([ids_of(loader(dataset, r, ranks).epoch(3, epoch)) for r in range(ranks)])
        assert torch.equal(seen.sort().values, dataset.ids(TRAIN).sort().values)


def test_one_rank_and_two_have_the_same_global_batches(dataset):
    alone = [batch.ids for batch in loader(dataset).epoch(3, 1)]
    shares = [[batch.ids for batch in loader(dataset, rank, 2).epoch(3, 1)] for rank in range(2)]
    for whole, *parts in zip(alone, *shares, strict=True):
        assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("step", [1, 4])
def test_a_resumed_epoch_continues_bit_for_bit(dataset, step):
    whole = list(loader(dataset).epoch(3, 1))[step:]
    resumed = list(loader(dataset).epoch(3, 1, step))
    assert len(whole) == len(resumed)
    for expected, batch in zip(whole, resumed, strict=True):
        assert torch.equal(batch.ids, expected.ids)
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.labels, expected.labels)


def test_streamed_images_are_the_packed_ones(dataset):
    source_rows = dataset.pack.sources
    for batch in loader(dataset).epoch(0, 0):
        numbers = batch.ids.numpy()
        packed = dataset.pack.take(numbers)  # 6x6 images: their thumbnails are the whole of them
        assert torch.equal(batch.images, packed)
        assert np.array_equal(batch.labels.numpy(), dataset.pack.index.labels[numbers])
    assert len(source_rows) == 120


def test_held_out_images_are_read_shard_by_shard(dataset):
    ids = dataset.ids(TEST)
    assert len(ids) > 3
    shards = dataset.images.shards_of(ids)[:, 0]
    assert (np.diff(shards) >= 0).all()
    read = ids_of(Loader(dataset.images, ids, 4, CPU).in_order())
    assert torch.equal(read, ids)
    assert torch.equal(ids[find_positions(ids, ids.flip(0))], ids.flip(0))


def test_an_epoch_over_a_faulty_server_with_few_copies_kept(tmp_path, no_pauses):
    files = make_shards(30, 4)
    with serving(files) as server:
        url = f"{server.url}/part-{{000..029}}.tar"
        from onsight.data.sources.find import ReadOptions

        size = max(map(len, files.values()))
        reading = ReadOptions(shard_cache_gigabytes=24.5 * size / 1e9)
        config = make_config({"residency": "stream", "folds": "1"})
        source = find_source(url, reading, tmp_path)
        dataset = open_dataset(source, config, (6, 6), tmp_path, 2)
        calm = [batch.images for batch in loader(dataset).epoch(3, 1)]
        for name in files:
            server.faults["GET", name] = [503, "cut"]
        server.requests.clear()
        faulty = [batch.images for batch in loader(dataset).epoch(3, 2)]
        again = [batch.images for batch in loader(dataset).epoch(3, 1)]
        assert sum(server.requests.values()) > 5
        kept = sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.shard"))
    assert kept <= 24.5 * size
    assert len(faulty) == len(calm)
    assert all(torch.equal(batch, other) for batch, other in zip(calm, again, strict=True))
