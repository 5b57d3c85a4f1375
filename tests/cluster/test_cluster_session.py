"""Reaching a cluster: the user's or one of ours, quiet and on loopback, with clear errors."""

import os
import re
import socket
import sys
from pathlib import Path

import pytest

from onsight.cluster.session import ray_cluster
from onsight.errors import ConfigError


def test_auto_starts_a_quiet_cluster_on_loopback_and_ends_it(fake_ray):
    with ray_cluster("auto") as ray:
        assert ray is fake_ray
    (_, given), (end, _) = fake_ray.calls
    assert given["address"] == "local"
    assert given["include_dashboard"] is False
    assert end == "shutdown"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert re.search(os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"], "(raylet) anything")  # to stdout
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"  # else it listens everywhere
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64  # else Ray writes one into the home folder


@pytest.fixture
def started_here(tmp_path, monkeypatch):
    """Write the file in which `ray start --head` leaves the address of its cluster."""

    def write(address):
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)

    return write


def test_auto_connects_to_the_cluster_that_ray_start_made_here(fake_ray, started_here):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        started_here(address)
        with ray_cluster("auto"):
            pass
    assert fake_ray.calls[0][1]["address"] == address
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_auto_starts_a_cluster_if_the_one_here_has_ended(fake_ray, started_here):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    started_here(address)
    with ray_cluster("auto"):
        pass
    assert fake_ray.calls[0][1]["address"] == "local"
    assert os.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_auto_trusts_no_address_that_another_user_left(fake_ray, started_here, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        started_here(f"127.0.0.1:{server.getsockname()[1]}")
        owner = os.getuid() + 1
        stat = Path.stat
        monkeypatch.setattr(
            Path, "stat", lambda path: os.stat_result([*stat(path)[:4], owner, *stat(path)[5:]])
        )
        with ray_cluster("auto"):
            pass
    assert fake_ray.calls[0][1]["address"] == "local"


@pytest.mark.parametrize("form", ["ray://127.0.0.1:{}", "127.0.0.1:{}"])
@pytest.mark.parametrize("by_variable", [True, False])
def test_the_user_s_cluster_is_used_as_it_is(fake_ray, monkeypatch, form, by_variable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
        if by_variable:
            monkeypatch.setenv("RAY_ADDRESS", address)
        with ray_cluster("auto" if by_variable else address):
            pass
    assert fake_ray.calls[0][1]["address"] == address
    assert "num_cpus" not in fake_ray.calls[0][1]
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_session_of_the_caller_is_left_open(fake_ray):
    fake_ray.is_initialized = lambda: True
    with ray_cluster("auto"):
        pass
    assert fake_ray.calls == []


def test_work_that_fails_ends_the_cluster_too(fake_ray):
    with pytest.raises(ZeroDivisionError), ray_cluster("auto"):
        raise ZeroDivisionError
    assert fake_ray.calls[-1][0] == "shutdown"


@pytest.mark.parametrize(
    "address", ["ray://", "nowhere", "host:", "ray://host:port", "http://host:80"]
)
def test_what_is_no_address_is_refused(fake_ray, address):
    with pytest.raises(ConfigError, match="is not an address: give auto, ray://HOST:PORT"):
        ray_cluster(address).__enter__()


def test_silence_is_named(fake_ray):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}.*ray start"):
        ray_cluster(address).__enter__()


def test_what_ray_refuses_is_repeated(fake_ray):
    def refuse(**given):
        raise RuntimeError("Version mismatch: the cluster was started with Ray 1")

    fake_ray.init = refuse
    with pytest.raises(ConfigError, match="Version mismatch"):
        ray_cluster("auto").__enter__()


def test_without_ray_the_extra_is_named(fake_ray, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[cluster\]'"):
        ray_cluster("auto").__enter__()
