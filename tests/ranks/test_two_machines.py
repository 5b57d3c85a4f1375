"""torchrun on two machines: network namespaces, each with an address and a loopback of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
from safetensors.torch import load_file

import onsight

ADDRESSES = {"onsight-a": "10.213.7.1", "onsight-b": "10.213.7.2"}
SETTINGS = {
    "--model": "lenet",
    "--epochs": "2",
    "--batch-size": "8",
    "--folds": "1",
    "--plan": "default",
    "--image-size": "32",
}


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines():
    """Two namespaces joined by a cable; only root can lay one."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip")
    with ExitStack() as undo:
        first, second = ADDRESSES
        for name in ADDRESSES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # of a killed test
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
            undo.callback(ip, "netns", "delete", name)
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "cable", "netns", second)
        for name, address in ADDRESSES.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for link in ("cable", "lo"):
                ip("-n", name, "link", "set", link, "up")
        yield ADDRESSES


def torchrun(machine, node, data, out):
    """Start one machine's rank, which can reach the other one only by the cable."""
    command = [
        *("ip", "netns", "exec", machine, sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node)),
        *("--master-addr", ADDRESSES["onsight-a"], "--master-port", "29400"),
        *("-m", "onsight", "train", str(data), "--out", str(out), "--device", "cpu"),
        *(word for pair in SETTINGS.items() for word in pair),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, start_new_session=True, **pipes)


def said_by(rank):
    """What a machine's processes printed; they are ended if they do not end by themselves."""
    try:
        return rank.communicate(timeout=180)[0]
    except subprocess.TimeoutExpired:
        os.killpg(rank.pid, signal.SIGKILL)
        raise


@pytest.mark.soak
def test_two_machines_train_as_one_process_does(machines, bars, tmp_path):
    out = tmp_path / "run"
    ranks = [torchrun(name, node, bars, out) for node, name in enumerate(machines)]
    said = [said_by(rank) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    results = json.loads((out / "results.json").read_text())
    assert results["ranks"] == 2
    fields = {name[2:].replace("-", "_"): value for name, value in SETTINGS.items()}
    alone = onsight.train(str(bars), out=str(tmp_path / "alone"), device="cpu", **fields)
    assert alone.results["images"] == results["images"]
    mine, theirs = (load_file(path / "model.safetensors") for path in (alone.path, out))
    for name, tensor in mine.items():
        assert tensor.allclose(theirs[name], atol=1e-4), name
