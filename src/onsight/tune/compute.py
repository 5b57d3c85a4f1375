"""The ways to compute a training step that are worth measuring, in stages."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from onsight.config import Config
from onsight.models.trial_forward import starts_slowly
from onsight.step.optim import FUSED_NAMES
from onsight.text import plural
from onsight.tune.plan import choose_precision, choose_threads
from onsight.tune.training_data import TrainingData
from onsight_explain.devices import has_graphs
from onsight_explain.threads import usable_cores

_MIN_COMPILE_SECONDS = 3600  # of training: compiling takes up to a minute and often gains nothing


@dataclass(frozen=True)
class ComputeOptions:
    """The settings that affect how a step is computed, named like their fields of the config."""

    precision: str
    memory_format: str
    threads: int
    compile: str
    accumulate: int
    cuda_graph: str = "off"

    def apply(self, config: Config) -> Config:
        """Return the config with these options."""
        return config.model_copy(update=asdict(self))

    def __str__(self) -> str:
        """Describe the options; all but precision and threads only if they are not the default."""
        words = [self.precision, plural(self.threads, "thread")]
        words += [self.memory_format] if self.memory_format != "auto" else []
        words += [f"{self.accumulate} parts"] if self.accumulate > 1 else []
        words += ["as a CUDA graph"] if self.cuda_graph == "on" else []
        words += ["compiled"] if self.compile == "on" else []
        return ", ".join(words)


# Takes the best options of the previous stage; returns those to compare, the simplest first.
Stage = Callable[[ComputeOptions], list[ComputeOptions]]


def default_options(config: Config, device: torch.device, threads: int) -> ComputeOptions:
    """Return the options to use without measuring."""
    return ComputeOptions(
        precision=choose_precision(config.precision, device).value,
        memory_format=config.memory_format,
        threads=threads,
        compile="on" if config.compile == "on" else "off",
        accumulate=max(1, config.accumulate),
        cuda_graph="on" if config.cuda_graph == "on" else "off",
    )


def eager_options(config: Config, device: torch.device, threads: int) -> ComputeOptions:
    """Return the default options without compiling or graphs, which slow down the first steps."""
    options = default_options(config, device, threads)
    return replace(options, compile="off", cuda_graph="off")


def open_stages(config: Config, data: TrainingData, expected_seconds: float) -> list[Stage]:
    """Return a stage for each choice that the config leaves open; its default comes first."""
    stages: list[Stage] = []
    if may_graph(config, data.device):
        # First, as launching kernels one by one may hide what else makes a difference.
        stages.append(lambda best: [best, replace(best, cuda_graph="on")])
    stages += _precision_and_threads(config, data.device)
    # The memory format matters only to convolutions, whose weights have four dimensions.
    net = data.new_network(config)
    has_convolutions = any(parameter.ndim == 4 for parameter in net.parameters())
    if config.memory_format == "auto" and has_convolutions:
        if not starts_slowly(net, data.device):
            stages.append(lambda best: [best, replace(best, memory_format="contiguous")])
        elif expected_seconds > _MIN_COMPILE_SECONDS:
            stages.append(lambda best: [best, replace(best, memory_format="channels_last")])
    if may_compile(config, data.device, expected_seconds):
        stages.append(lambda best: [best, replace(best, compile="on")])
    return stages


def _precision_and_threads(config: Config, device: torch.device) -> list[Stage]:
    """Return one stage for both, if either is open."""
    threads, precisions = _thread_counts(config, device), _precisions(config, device)
    if len(precisions) * len(threads) <= 1:
        return []
    grid = [(precision, count) for precision in precisions for count in threads]
    return [lambda best: [replace(best, precision=p, threads=t) for p, t in grid]]


def may_graph(config: Config, device: torch.device) -> bool:
    """Return whether to try replaying steps as a graph."""
    return config.cuda_graph == "auto" and why_not_graphed(config, device) == ""


def why_not_graphed(config: Config, device: torch.device) -> str:
    """Return why steps cannot be replayed as a graph; empty if they may be."""
    if not has_graphs(device):
        return "only NVIDIA's and AMD's GPUs have CUDA graphs"
    if config.optimizer not in FUSED_NAMES:
        return f"only {', '.join(FUSED_NAMES)} can be recorded, not {config.optimizer}"
    return ""


def may_compile(config: Config, device: torch.device, expected_seconds: float) -> bool:
    """Return whether to try torch.compile: in long runs, if there is a compiler."""
    if config.compile != "auto" or expected_seconds <= _MIN_COMPILE_SECONDS:
        return False
    # On CUDA it uses Triton, which comes with torch; on the CPU, a C++ compiler.
    return device.type == "cuda" or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def _thread_counts(config: Config, device: torch.device) -> list[int]:
    """Return all cores, then every power of two below."""
    if config.threads or device.type != "cpu":
        return [choose_threads(config.threads).value]
    cores = usable_cores()
    return [cores, *(1 << bit for bit in range(cores.bit_length()) if 1 << bit < cores)]


def _precisions(config: Config, device: torch.device) -> list[str]:
    default = choose_precision(config.precision, device).value
    others = {"cpu": ["bf16"], "cuda": ["fp32", "fp16"]}.get(device.type, [])
    return [default, *(p for p in others if config.precision == "auto" and p != default)]
