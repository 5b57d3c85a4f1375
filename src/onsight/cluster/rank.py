"""One rank of a run, inside a worker of Ray Train: the same `train` that torchrun's ranks call."""

import io
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsight.cluster.job import Job
from onsight.errors import OnsightError, OutputError, RankLost
from onsight_explain.spinning import choose_spinning

_LOOK_SECONDS = 1.0
_CLAIM_SECONDS = 60.0  # that a lost machine's claim on the run folder may outlive it
_LOOPBACK = "127.0.0.1"


def run_rank(settings: dict[str, Any]) -> None:
    """Train as the rank that Ray Train made of this process.

    settings: job, a Job; notes, the handle of the actor Notes; cpus, of each rank. What must not be
    tried again is noted there; any exception lets Ray Train start all ranks anew.
    """
    import ray

    notes, job = settings["notes"], settings["job"]
    if ray.get(notes.why_failed.remote()):
        return
    try:
        _train(job, notes, settings["cpus"])
    except RankLost:
        raise
    except OnsightError as error:
        ray.get(notes.fail.remote(str(error), error.exit_code))
        raise
    except Exception:
        ray.get(notes.fail.remote(traceback.format_exc().rstrip(), 1, True))
        raise


def _train(job: Job, notes: Any, cpus: int) -> None:
    import ray
    from ray import train as ray_train
    from ray.train.collective import broadcast_from_rank_zero

    choose_spinning()
    from onsight.training.run import train

    context = ray_train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    machine = socket.gethostname()
    node = ray.get_runtime_context().get_node_id()
    ray.get(notes.enter.remote(rank, f"process {os.getpid()} on {machine}", node))
    job.refuse_unseen(machine)
    meeting = broadcast_from_rank_zero(_call_meeting(job, notes, size) if rank == 0 else None)
    fields = {"threads": cpus, **job.arguments(meeting["resume"])}
    if size == 1:
        fields["ranks"] = 1
    else:
        _set_environment(context, meeting["address"])
    called = time.monotonic()
    with _heeding(notes):
        train(
            job.data,
            out=job.out,
            resume=meeting["resume"],
            reporter=_reporter(notes),
            spent=lambda: job.spent_seconds + time.monotonic() - called,
            **fields,
        )


def _call_meeting(job: Job, notes: Any, size: int) -> dict[str, Any]:
    """Where the ranks meet, and whether they resume: all must agree on that."""
    import ray

    _wait_for_claim(job.out)
    ray.get(notes.begin.remote(size, job.checkpoint))
    address = _host_store() if size > 1 else ""
    return {"address": address, "resume": job.resume or job.is_begun}


def _host_store() -> str:
    """Host the ranks' store in this process, on the address by which Ray knows this machine."""
    import ray
    from torch.distributed import TCPStore

    host = ray.util.get_node_ip_address()
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    descriptor = listening.detach()
    _hosted.append(
        TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    )
    return f"{host}:{port}"


_hosted: list[Any] = []  # stores that last as long as this process


def _set_environment(context: Any, address: str) -> None:
    """Say what torchrun would; nothing listens beyond loopback unless Ray does."""
    from onsight.training.ranks.watchdog import LAUNCHED

    host = address.rpartition(":")[0]
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "GROUP_RANK": str(context.get_node_rank()),
        "MASTER_ADDR": host,
        LAUNCHED: address,
    }
    if host == _LOOPBACK:
        name = "lo0" if sys.platform == "darwin" else "lo"
        os.environ |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def _wait_for_claim(out: str) -> None:
    """Wait until the ranks before these no longer hold the run folder."""
    from onsight.training.run_folder.folder import claim_folder

    until = time.monotonic() + _CLAIM_SECONDS
    while True:
        try:
            return claim_folder(Path(out), resume=True).release()
        except OutputError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_SECONDS)


@contextmanager
def _heeding(notes: Any) -> Iterator[None]:
    """Stop after a checkpoint if the command that started the run asks for it."""
    import ray

    from onsight.training.ranks.signals import ask_to_stop

    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if number := ray.get(notes.stop_signal.remote()):
                ask_to_stop(number)  # again and again: a run that prepares does not listen yet

    thread = threading.Thread(target=look, name="heed", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _reporter(notes: Any) -> Any:
    from rich.console import Console

    from onsight.report.console import Reporter

    return Reporter(Console(file=_Lines(notes), highlight=False, soft_wrap=True))


class _Lines(io.StringIO):
    """A file whose whole lines go to the notes."""

    def __init__(self, notes: Any) -> None:
        super().__init__()
        self.notes = notes

    def flush(self) -> None:
        *lines, rest = self.getvalue().split("\n")
        self.seek(0)
        self.truncate()
        self.write(rest)
        for line in lines:
            self.notes.say.remote(line)
