"""The ranks of a training run as workers of Ray Train, which places them and restarts them.

`run_ranks` is a task on the cluster; each of its workers calls the `train` that a rank of torchrun
would. Nothing here imports torch before the workers have chosen how its threads wait.
"""

import io
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onsight.cluster.job import TrainingJob
from onsight.cluster.session import Allocation
from onsight.errors import OnsightError, OutputError, RankLost
from onsight_explain.threads import choose_spinning

FOLDER = "ray"  # folder for Ray Train's files (a few kilobytes) in the run's checkpoints

_START_ATTEMPTS = 3  # retries if ranks fail before they run, as on a machine without Onsight
_DECLARED_LOST_SECONDS = 30.0  # maximum wait for Ray to consider a silent machine lost; usually 15
_NOTICED_SECONDS = 21.0  # wait for Ray Train, which polls every 20 s, to notice that
_POLL_SECONDS = 1.0
_CLAIM_SECONDS = 60.0  # maximum wait for a lost machine's claim on the run folder to end

_stores: list[Any] = []  # of the ranks, kept alive until this process ends


def run_ranks(job: TrainingJob, state: Any, allocation: Allocation) -> None:
    """Run the ranks to the end with Ray Train.

    Ray restarts all ranks after any failure; they return at once if the state has a failure.
    """
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        run_rank,
        train_loop_config={"job": job, "state": state, "cpus": allocation.cpus},
        torch_config=_make_torch_config(),
        scaling_config=ScalingConfig(
            num_workers=(1, allocation.processes),
            use_gpu=bool(allocation.gpus),
            resources_per_worker=allocation.resources,
        ),
        run_config=RunConfig(
            name=FOLDER,
            storage_path=os.path.join(job.out, "checkpoints"),
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=_START_ATTEMPTS),
            callbacks=[_make_lost_rank_callback(state)],
        ),
    )
    trainer.fit()


def run_rank(settings: dict[str, Any]) -> None:
    """Train as a rank of the job; Ray Train calls this in every worker.

    A failure that a retry cannot fix is recorded in the state. After any exception, Ray restarts
    all ranks.

    Args:
        settings: `job`, a TrainingJob; `state`, the handle of the JobState actor; and `cpus`, the
            number of CPUs per rank.
    """
    import ray

    state, job = settings["state"], settings["job"]
    if ray.get(state.get_failure.remote()):
        return
    try:
        _train(job, state, settings["cpus"])
    except RankLost:
        raise
    except OnsightError as error:
        ray.get(state.fail.remote(str(error), error.exit_code))
        raise
    except Exception:
        ray.get(state.fail.remote(traceback.format_exc().rstrip(), 1, True))
        raise


def _train(job: TrainingJob, state: Any, cpus: int) -> None:
    import ray
    from ray import train as ray_train
    from ray.train.collective import broadcast_from_rank_zero

    choose_spinning()
    from onsight.report.console import Reporter, TextConsole
    from onsight.training.run import train

    context = ray_train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    machine = socket.gethostname()
    node = ray.get_runtime_context().get_node_id()
    ray.get(state.register_rank.remote(rank, f"process {os.getpid()} on {machine}", node))
    job.check_visible(machine)
    shared = broadcast_from_rank_zero(_prepare(job, state, size) if rank == 0 else None)
    fields = {"threads": cpus, **job.arguments(shared["resume"])}
    if size == 1:
        fields["ranks"] = 1
    else:
        _set_environment(context, shared["address"])
    console = TextConsole(file=_StateLines(state), soft_wrap=True)
    started = time.monotonic()
    with _forwarding_stop(state):
        train(
            job.data,
            out=job.out,
            resume=shared["resume"],
            reporter=Reporter(console, verbose=job.is_verbose),
            spent=lambda: job.spent_seconds + time.monotonic() - started,
            **fields,
        )


def _prepare(job: TrainingJob, state: Any, size: int) -> dict[str, Any]:
    """Return the values shared by all ranks: the store's address, and whether to resume."""
    import ray

    from onsight.ranks.meeting import host_store

    _wait_for_claim(job.out)
    ray.get(state.start.remote(size, job.checkpoint_version))
    address = ""
    if size > 1:
        store, address = host_store(ray.util.get_node_ip_address())
        _stores.append(store)
    return {"address": address, "resume": job.resume or job.is_started}


def _wait_for_claim(out: str) -> None:
    """Wait until the ranks of the previous attempt have released the run folder."""
    from onsight.training.run_folder import claim_folder

    deadline = time.monotonic() + _CLAIM_SECONDS
    while True:
        try:
            return claim_folder(Path(out), resume=True).release()
        except OutputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _set_environment(context: Any, address: str) -> None:
    """Set the variables that torchrun would; nothing listens beyond loopback unless Ray does."""
    from onsight.ranks.meeting import store_variables

    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "GROUP_RANK": str(context.get_node_rank()),
        "MASTER_ADDR": address.rpartition(":")[0],
        **store_variables(address),
    }


@contextmanager
def _forwarding_stop(state: Any) -> Iterator[None]:
    """Stop this rank after a checkpoint if the command requests it."""
    import ray

    from onsight.ranks.signals import request_stop

    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            if number := ray.get(state.get_stop_signal.remote()):
                request_stop(number)  # repeatedly: a run ignores it until its training starts

    thread = threading.Thread(target=poll, name="forward stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _StateLines(io.StringIO):
    """A text file whose complete lines go to the job's state."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def flush(self) -> None:
        *lines, rest = self.getvalue().split("\n")
        self.seek(0)
        self.truncate()
        self.write(rest)
        for line in lines:
            self._state.add_line.remote(line)


# ------------------------------------------------------------------------------ lost ranks


def wait_until_noticed(ray: Any, lost: set[str], silent: set[str]) -> None:
    """Wait until Ray Train has detected which machines are gone, so that it places no ranks there.

    Without this, Ray Train tries to use them for a minute before it starts fewer ranks. lost: ids
    of the machines of ranks that ended; silent: ids of those that do not respond.
    """
    deadline = time.monotonic() + _DECLARED_LOST_SECONDS
    while silent & _list_live_node_ids(ray) and time.monotonic() < deadline:
        time.sleep(0.5)
    if lost - _list_live_node_ids(ray):
        time.sleep(_NOTICED_SECONDS)


def describe_lost_rank(exceptions: Mapping[int, Exception]) -> tuple[int, str]:
    """Return (rank, reason) from Ray's errors by rank, preferring a process that is gone.

    Ray keeps the error of a process that no longer responds as `health_check_failure`, in many
    lines of text.
    """
    gone = {
        rank: error.health_check_failure
        for rank, error in exceptions.items()
        if hasattr(error, "health_check_failure")
    }
    rank, error = min((gone or exceptions).items())
    if _is_silent(error):
        return rank, "Ray cannot connect to its process"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if " because " in line] or lines[-1:]
    return rank, reasons[0] if reasons else type(error).__name__


def _make_lost_rank_callback(state: Any) -> Any:
    """Return a callback for Ray Train that records lost ranks."""
    import ray
    from ray.train import UserCallback

    class LostRankCallback(UserCallback):  # type: ignore[misc]
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Any]) -> None:
            ray.get(state.record_lost_rank.remote(*describe_lost_rank(worker_exceptions)))
            silent = [rank for rank, error in worker_exceptions.items() if _is_silent(error)]
            nodes = [state.nodes_of.remote(ranks) for ranks in ([*worker_exceptions], silent)]
            wait_until_noticed(ray, ray.get(nodes[0]), ray.get(nodes[1]))

    return LostRankCallback()


def _make_torch_config() -> Any:
    """Return a config of TorchTrainer that leaves the process group to Onsight's ranks."""
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig

    class GpusOnly(Backend):  # type: ignore[misc]
        share_cuda_visible_devices = True  # as with torchrun, rank i of a machine uses GPU i

    class WithoutProcessGroup(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> type[GpusOnly]:
            return GpusOnly

    return WithoutProcessGroup()


def _list_live_node_ids(ray: Any) -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _is_silent(error: Exception) -> bool:
    """Return whether Ray cannot reach a process but has not declared it dead yet."""
    cause = getattr(error, "health_check_failure", error)
    return type(cause).__name__ == "ActorUnavailableError"
