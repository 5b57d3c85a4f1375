"""A ray:// address: weights and predictions equal those without a cluster."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow.parquet import read_table
from safetensors.numpy import load_file

from own_cluster import own_cluster
from test_ray import TRAINING, Command, code, garments, model  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Ray's files
_READY_SECONDS = 30  # the port is open before the agent can start a server for a client


@pytest.fixture(scope="module")
def address(
    code: dict[str, str],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The ray:// address of a cluster of two CPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cache = str(tmp_path_factory.mktemp("cache"))
    with own_cluster(2, {"ONSIGHT_CACHE": cache, **code}, port):
        time.sleep(_READY_SECONDS)
        yield f"ray://127.0.0.1:{port}"


def test_weights(address: str, garments: Path, tmp_path: Path) -> None:  # noqa: F811
    here, there = tmp_path / "here", tmp_path / "there"
    words = f"train {garments} {TRAINING} --epochs 3"
    Command(words, out=here).finish()
    Command(words, out=there, cluster=address).finish()
    expected, found = (load_file(run / "model.safetensors") for run in (here, there))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert np.allclose(found[name], weights, rtol=1e-9, atol=1e-9), name


def test_predictions(
    address: str,
    model: Path,  # noqa: F811
    garments: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    words = f"predict {model} {garments} --top 3"
    Command(words, parquet=tmp_path / "here.parquet").finish()
    Command(words, parquet=tmp_path / "there.parquet", cluster=address).finish()
    assert read_table(tmp_path / "there.parquet").equals(read_table(tmp_path / "here.parquet"))
