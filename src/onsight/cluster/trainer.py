"""Ray Train's part: it places the ranks, notices lost ones and starts all of them again."""

import os
import time
from collections.abc import Mapping
from typing import Any

from onsight.cluster.job import Job
from onsight.cluster.rank import run_rank
from onsight.cluster.shares import Share

FOLDER = "ray"  # in the checkpoints of the run: Ray Train's own notes, a few kilobytes
_STARTS = 3  # of ranks that fail before they run: a machine without Onsight
_GIVEN_UP_SECONDS = 30.0  # until Ray believes a machine lost that does not answer; usually 15
_LOOK_SECONDS = 21.0  # until Ray Train hears of it, which looks every 20


def fit(job: Job, notes: Any, share: Share) -> None:
    """Run the ranks to the end with Ray Train, a task on the cluster.

    Ray goes on after any loss; the notes say when that is pointless.
    """
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        run_rank,
        train_loop_config={"job": job, "notes": notes, "cpus": share.cpus},
        torch_config=_without_group(),
        scaling_config=ScalingConfig(
            num_workers=(1, share.processes),
            use_gpu=bool(share.gpus),
            resources_per_worker=share.resources,
        ),
        run_config=RunConfig(
            name=FOLDER,
            storage_path=os.path.join(job.out, "checkpoints"),
            failure_config=FailureConfig(max_failures=-1, controller_failure_limit=_STARTS),
            callbacks=[_telling(notes)],
        ),
    )
    trainer.fit()


def _without_group() -> Any:
    """A config of TorchTrainer that leaves the process group to Onsight's ranks."""
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig

    class GpusOnly(Backend):  # type: ignore[misc]
        share_cuda_visible_devices = True  # as torchrun does; a rank takes that of its number

    class WithoutGroup(TorchConfig):  # type: ignore[misc]
        @property
        def backend_cls(self) -> type[GpusOnly]:
            return GpusOnly

    return WithoutGroup()


def _telling(notes: Any) -> Any:
    """A callback in which Ray Train says that ranks were lost."""
    import ray
    from ray.train import UserCallback

    class Telling(UserCallback):  # type: ignore[misc]
        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Any]) -> None:
            ray.get(notes.lose.remote(*describe_loss(worker_exceptions)))
            silent = [rank for rank, error in worker_exceptions.items() if _is_silent(error)]
            ended = [notes.nodes_of.remote(ranks) for ranks in ([*worker_exceptions], silent)]
            wait_until_noticed(ray, ray.get(ended[0]), ray.get(ended[1]))

    return Telling()


def wait_until_noticed(ray: Any, lost: set[str], silent: set[str]) -> None:
    """Wait until Ray Train knows which machines are gone, so that it places no ranks on them.

    Without that it would try fewer ranks only after a minute in vain. lost: machines of ranks that
    ended; silent: those of them that do not answer.
    """
    until = time.monotonic() + _GIVEN_UP_SECONDS
    while silent & _live(ray) and time.monotonic() < until:
        time.sleep(0.5)
    if lost - _live(ray):
        time.sleep(_LOOK_SECONDS)


def _live(ray: Any) -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _is_silent(error: Exception) -> bool:
    """Whether Ray cannot reach a process and does not know yet that it is gone."""
    cause = getattr(error, "health_check_failure", error)
    return type(cause).__name__ == "ActorUnavailableError"


def describe_loss(exceptions: Mapping[int, Exception]) -> tuple[int, str]:
    """The rank that was lost and why, from Ray's errors by rank: one that is gone before others.

    Ray has a process that no longer answers as `health_check_failure`, in words of many lines.
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
    telling = [line for line in lines if " because " in line] or lines[-1:]
    return rank, telling[0] if telling else type(error).__name__
