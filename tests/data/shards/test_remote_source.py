"""DATA behind URLs: fsspec's memory filesystem, and a server with planted faults."""

import json
import math
import os
import sys

import numpy as np
import pytest
from faulty_server import serving
from shard_files import index_of, make_shards, png, tar

from onsight.cli import main
from onsight.config import make_config
from onsight.data.dataset import open_dataset
from onsight.data.shards import bounded_http, retry
from onsight.data.shards.remote import Remote, expand_braces
from onsight.data.sources.find import ReadOptions, find_source
from onsight.errors import ConfigError, DataError, DiskError, RemoteFailed
from onsight.limits import SHARD_INDEX_BYTES


def put(memory, shards, folder="/set"):
    for name, content in shards.items():
        memory.pipe_file(f"{folder}/{name}", content)


def everything(source):
    """Every row's locator, class and bytes."""
    index = source.index
    names = [index.classes[label] for label in index.labels]
    images = [source.read(row) for row in range(len(index))]
    return list(zip(index.locators, names, images, strict=True))


def test_a_url_reads_as_the_same_folder_does(memory, tmp_path):
    shards = make_shards(3, 4)
    put(memory, shards)
    for name, content in shards.items():
        (tmp_path / name).write_bytes(content)
    here, there = find_source(str(tmp_path)), find_source("memory://set")
    assert everything(there) == everything(here)
    assert everything(find_source(f"file://{tmp_path}")) == everything(here)
    assert there.index.splits.tolist() == here.index.splits.tolist()
    assert str(there.root) == "memory://set"
    assert "12 images in 3 shards" in there.description


def test_only_what_changed_is_read_again(tmp_path, no_pauses):
    files = {f"s/{name}": content for name, content in make_shards(3, 4).items()}
    with serving(files) as server:
        files["s/index.json"] = index_of({name[2:]: content for name, content in files.items()})
        url = f"{server.url}/s"
        first = find_source(url, cache_folder=tmp_path)
        os.rename(tmp_path / "shards", tmp_path / "gone")
        files["s/part-001.tar"] = make_shards(1, 5, first=100)["part-000.tar"]
        files["s/index.json"] = index_of(
            {name[2:]: content for name, content in files.items() if name.endswith(".tar")}
        )
        server.requests.clear()
        second = find_source(url, cache_folder=tmp_path)
        read = [name for (method, name), _ in server.requests.items() if method == "GET"]
    assert sorted(read) == ["s/index.json", "s/part-001.tar"]
    assert len(first.index) == 12
    assert len(second.index) == 13
    assert first.fingerprint != second.fingerprint


def test_a_shard_without_etag_and_date_is_read_again_to_see_whether_it_changed(tmp_path):
    files = {"a.tar": tar({"0.png": png(0), "0.cls": b"cat", "1.png": png(1), "1.cls": b"dog"})}
    with serving(files) as server:
        server.etags = False
        url = f"{server.url}/a.tar"
        first, same = (find_source(url, cache_folder=tmp_path) for _ in range(2))
        files["a.tar"] = files["a.tar"].replace(b"cat", b"emu")
        changed = find_source(url, cache_folder=tmp_path)
        assert everything(changed) == [
            ("a.tar/0.png", "emu", png(0)),
            ("a.tar/1.png", "dog", png(1)),
        ]
    assert first.fingerprint == same.fingerprint != changed.fingerprint
    (note,) = same.notes
    assert note.startswith("read 1 shard to see whether anything has changed")


def test_transient_faults_only_cost_retries(tmp_path, no_pauses):
    files = make_shards(2, 4)
    with serving(files) as server:
        first, second = files
        server.faults = {
            ("GET", first): [503, "cut", 500, 429],
            ("GET", second): ["cut", "cut"],
        }
        source = find_source(f"{server.url}/part-{{000..001}}.tar", cache_folder=tmp_path)
        found = everything(source)
        assert server.requests["GET", first] == 5
        assert server.requests["GET", second] == 3
    assert [content for _, _, content in found] == [png(number) for number in range(8)]


def test_a_server_without_ranges(tmp_path):
    files = make_shards(1, 4)
    with serving(files) as server:
        server.ranges = False
        source = find_source(f"{server.url}/part-000.tar")
        assert [content for _, _, content in everything(source)] == [png(n) for n in range(4)]


@pytest.mark.parametrize("status", [403, 404])
def test_permanent_failures_are_not_retried(status, tmp_path):
    files = make_shards(1, 4)
    with serving(files) as server:
        server.faults = {("GET", "part-000.tar"): [status] * 9}
        with pytest.raises((DataError, RemoteFailed), match=r"part-000.tar") as caught:
            find_source(f"{server.url}/part-000.tar", cache_folder=tmp_path)
        assert caught.value.exit_code == 2
        assert server.requests["GET", "part-000.tar"] == 1


def test_a_server_that_keeps_failing_is_named_and_what_was_read_is_kept(tmp_path, no_pauses):
    files = make_shards(3, 4)
    url = "{}/part-{{000..002}}.tar"
    with serving(files) as server:
        server.faults = {("GET", "part-000.tar"): [503] * retry.TRIES}
        with pytest.raises(RemoteFailed, match=f"{retry.TRIES} tries failed") as caught:
            find_source(url.format(server.url), cache_folder=tmp_path)
        assert "part-000.tar" in str(caught.value)
        server.requests.clear()
        assert len(find_source(url.format(server.url), cache_folder=tmp_path).index) == 12
        assert server.requests["GET", "part-002.tar"] == 0


def test_broken_shards_and_members_are_listed(memory):
    shards = make_shards(1, 2)
    shards["part-001.tar"] = make_shards(1, 2, first=50)["part-000.tar"][:700]
    shards["part-002.tar"] = tar({"a.png": png(7), "b.png": png(8), "b.cls": b"cat"})
    put(memory, shards)
    source = find_source("memory://set")
    assert len(source.index) == 3
    reasons = {problem.path: problem.reason for problem in source.problems}
    assert reasons["part-001.tar"].startswith("a broken shard")
    assert reasons["part-002.tar/a.png"].startswith("no label")


def test_a_shard_that_changes_under_a_run_is_refused(memory, tmp_path):
    put(memory, make_shards(2, 4))
    source = find_source("memory://set", cache_folder=tmp_path)
    for path in (tmp_path / "shards").glob("*.shard"):
        path.unlink()
    other = make_shards(1, 4, first=80)["part-000.tar"]
    memory.store["/set/part-001.tar"].seek(0)
    memory.store["/set/part-001.tar"].write(other)
    fresh = find_source("memory://set", cache_folder=tmp_path)  # the same size and version
    assert fresh.fingerprint == source.fingerprint
    fresh.shards.prefetch([1])
    with pytest.raises(DataError, match=r"part-001.tar is not what it was"):
        fresh.read(4)


@pytest.mark.parametrize(("key", "value"), [("filesize", 1), ("md5sum", "0" * 32), ("nsamples", 5)])
def test_a_shard_that_differs_from_its_index_is_a_problem(key, value, tmp_path):
    shards = make_shards(2, 4)
    index = json.loads(index_of(shards))
    index["shardlist"][1][key] = value
    with serving({**shards, "index.json": json.dumps(index).encode()}) as server:
        source = find_source(server.url, cache_folder=tmp_path)
    assert [locator[:12] for locator in source.index.locators] == ["part-000.tar"] * 4
    (problem,) = source.problems
    assert problem.path == "part-001.tar"
    assert "index.json" in problem.reason


def test_the_index_is_compared_wherever_shards_are_listed(memory):
    shards = make_shards(2, 4)
    changed = shards["part-001.tar"].replace(b"dog", b"dot")
    put(memory, {**shards, "index.json": index_of(shards), "part-001.tar": changed})
    source = find_source("memory://set")
    assert source.index.classes == ("cat", "dog")
    assert [problem.path for problem in source.problems] == ["part-001.tar"]
    memory.rm_file("/set/part-001.tar")
    with pytest.raises(DataError, match=r"part-001.tar"):
        find_source("memory://set")


def test_an_index_without_an_end_is_refused(tmp_path):
    shards = make_shards(1, 4)
    index = index_of(shards) + b" " * SHARD_INDEX_BYTES
    with serving({**shards, "index.json": index}) as server:
        with pytest.raises(DataError, match=r"index.json has more than 33.6 MB"):
            find_source(server.url)
        server.files["index.json"] = index_of(shards)
        assert len(find_source(server.url).index) == 4


def test_only_the_bytes_of_a_shard_are_read_from_an_endless_response(tmp_path):
    with serving(make_shards(1, 4)) as server:
        server.faults = {("GET", "part-000.tar"): ["endless"]}
        source = find_source(f"{server.url}/part-000.tar")
        assert [content for _, _, content in everything(source)] == [png(n) for n in range(4)]
        assert server.requests["GET", "part-000.tar"] == 1
        assert server.requests["to the end", "part-000.tar"] == 0


def test_a_compressed_response_is_refused(tmp_path):
    with serving(make_shards(1, 4)) as server:
        server.faults = {("GET", "part-000.tar"): ["gzip"]}
        with pytest.raises(DataError, match=r"part-000.tar is sent compressed"):
            find_source(f"{server.url}/part-000.tar")


@pytest.mark.parametrize(
    ("request_of", "fault"), [(("GET", "index.json"), "drip"), (("HEAD", "part-000.tar"), "silent")]
)
def test_too_slow_a_response_counts_as_a_lost_connection(request_of, fault, no_pauses, monkeypatch):
    monkeypatch.setattr(bounded_http, "_PIECE_SECONDS", 0.1)
    shards = make_shards(1, 4)
    with serving({**shards, "index.json": index_of(shards)}) as server:
        server.faults = {request_of: [fault] * retry.TRIES}
        with pytest.raises(RemoteFailed, match=r"less than 0.3 MB, came in 0.1 s"):
            find_source(server.url)


def test_a_page_of_links(tmp_path):
    shards = make_shards(2, 4)
    page = b"""<a href="../">up</a> <A HREF='part-000.tar'>0</A> <a class=x href="b&amp;c/">c</a>"""
    files = {"s": page, "s/part-000.tar": shards["part-000.tar"]}
    files["s/b&c/"] = b'<a href="/s/b&c/part-001.tar">1</a> <a href="http://other.invalid/2.tar">'
    files["s/b&c/part-001.tar"] = shards["part-001.tar"]
    with serving(files) as server:
        assert len(find_source(f"{server.url}/s").index) == 8
        files["s"] += b" " * SHARD_INDEX_BYTES
        with pytest.raises(DataError, match=r"the page .*/s has more than 33.6 MB"):
            find_source(f"{server.url}/s")


def test_braces():
    assert sorted(expand_braces("{a,b}/x-{08..10}.tar")) == [
        *("a/x-08.tar", "a/x-09.tar", "a/x-10.tar"),
        *("b/x-08.tar", "b/x-09.tar", "b/x-10.tar"),
    ]
    assert list(expand_braces("{5..1}.tar")) == []
    for text in ("{0..9999999}.tar", "{0..9}" * 7):
        with pytest.raises(DataError, match="too many addresses"):
            list(expand_braces(text))


def test_parquet_behind_a_url(memory, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name, numbers in {"train-0": range(6), "test-0": range(6, 9)}.items():
        cells = [{"bytes": png(number), "path": ""} for number in numbers]
        table = pyarrow.table({"image": cells, "label": [f"c{n % 2}" for n in numbers]})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        memory.pipe_file(f"/set/{name}.parquet", (tmp_path / f"{name}.parquet").read_bytes())
    here, there = find_source(str(tmp_path)), find_source("memory://set")
    assert everything(there) == everything(here)
    assert there.index.splits.tolist() == here.index.splits.tolist()
    assert len(set(there.shards.part_of_row.tolist())) == 5
    assert there.shards.file_of_part.tolist() == [0, 0, 1, 1, 1]


def test_too_little_space_for_copies_is_reported_before_training(memory, tmp_path):
    put(memory, make_shards(8, 4))
    size = len(next(iter(make_shards(1, 4).values())))
    tight = ReadOptions(shard_cache_gigabytes=2.5 * size / 1e9)
    source = find_source("memory://set", tight, tmp_path)
    config = make_config({"residency": "stream"})
    with pytest.raises(ConfigError, match="--shard-cache-gigabytes"):
        open_dataset(source, config, (6, 6), tmp_path, 1)
    none = ReadOptions(shard_cache_gigabytes=0.5 * size / 1e9)
    with pytest.raises(DiskError, match="--shard-cache-gigabytes"):
        find_source("memory://set", none, tmp_path / "other")


@pytest.mark.parametrize("gigabytes", [1e300, math.nan])
def test_the_space_for_copies_is_finite(gigabytes):
    with pytest.raises(ConfigError, match="--shard-cache-gigabytes"):
        make_config({"shard_cache_gigabytes": gigabytes})


def test_urls_without_shards_are_explained(memory):
    memory.pipe_file("/set/a.jpg", b"x")
    with pytest.raises(DataError, match="onsight shard"):
        find_source("memory://set")
    with pytest.raises(DataError, match="nosuch"):
        find_source("nosuch://set")


@pytest.mark.parametrize(
    ("url", "package"), [("gs://b/set", "gcsfs"), ("gcs://b", "gcsfs"), ("az://b/set", "adlfs")]
)
def test_a_package_that_is_missing_is_named(url, package, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)  # not to be imported, though installed
    for words in (["train", url, "--out", tmp_path / "run"], ["shard", tmp_path, "--out", url]):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        lines = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2
        assert (
            lines[-1]
            == f"error: {url} needs a package that is not installed: pip install {package}"
        )


class Always(dict):
    """The same fault for every request."""

    def get(self, key, default=None):
        return [503]


def test_s3_requests_are_retried_as_configured_and_waits_are_logged(monkeypatch, no_pauses, caplog):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(retry, "QUIET_SECONDS", 0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "made-up")
    with serving({}) as server:
        server.faults = Always()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(RemoteFailed, match=f"{retry.TRIES} tries failed"):
            find_source("s3://bucket/set")
        assert sum(server.requests.values()) == retry.TRIES
    assert len(caplog.messages) == 1
    assert f"try 1 of {retry.TRIES} failed" in caplog.messages[0]


@pytest.mark.parametrize("pattern", ["", "/*/part-*.tar"])
def test_a_folder_whose_listing_fails_for_a_moment_is_not_left_out(
    pattern, monkeypatch, no_pauses, tmp_path
):
    wanted = [tmp_path / folder / "part-000.tar" for folder in "ab"]
    for path in wanted:
        path.parent.mkdir()
        path.write_bytes(b"x")
    remote = Remote.open(f"file://{tmp_path}{pattern}")
    failed, ls = [], remote.filesystem.ls

    def fail_once(path, *args, **kwargs):
        if path.endswith("/b") and not failed:
            failed.append(path)
            raise ConnectionResetError
        return ls(path, *args, **kwargs)

    monkeypatch.setattr(remote.filesystem, "ls", fail_once)
    assert [file.path for file in remote.files((".tar",))] == [str(path) for path in wanted]
    assert failed


def test_decoding_starts_with_shards_that_the_index_left_in_the_cache(tmp_path):
    files = make_shards(30, 4)
    with serving(files) as server:
        reading = ReadOptions(shard_cache_gigabytes=24.5 * max(map(len, files.values())) / 1e9)
        source = find_source(f"{server.url}/part-{{000..029}}.tar", reading, tmp_path)
        dataset = open_dataset(source, make_config({}), (6, 6), tmp_path, 1)
        assert len(dataset.pack.index) == 120
        requests = {
            name: count for (method, name), count in server.requests.items() if method == "GET"
        }
    assert 30 < sum(requests.values()) <= 30 + 8  # from the first on: each twice


def test_a_drawn_part_keeps_its_shards(memory):
    put(memory, make_shards(3, 4))
    from onsight.data.sources.source import select_rows

    part = select_rows(find_source("memory://set"), np.array([9, 1]))
    assert part.shards.part_of_row.tolist() == [2, 0]
    assert part.read(0) == png(9)
