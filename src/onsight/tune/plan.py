"""The plan of a run: each choice with its reason, printed and saved in plan.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.errors import ConfigError
from onsight.files import write_json
from onsight_explain.devices import has_bf16, has_tf32
from onsight_explain.threads import usable_cores

_CUDNN: Any = torch.backends.cudnn  # a module whose attributes are settings
_CPU: Any = torch.cpu
_MKLDNN: Any = torch.ops.mkldnn


@dataclass(frozen=True)
class ComputePlan:
    """How each step is computed."""

    precision: Choice[str]
    memory_format: Choice[str]
    threads: Choice[int]
    compile: Choice[str]
    accumulate: Choice[int]
    cuda_graph: Choice[str]
    measured: Choice[list[dict[str, Any]]]  # every set of options that was timed or refused

    def choices(self) -> dict[str, Choice[Any]]:
        """Return the choices by the names of their settings."""
        names = [field.name for field in fields(self) if field.name != "measured"]
        return {name: getattr(self, name) for name in names}

    @property
    def images_per_second(self) -> float | None:
        """The measured rate of the chosen options, or None if they were not measured."""
        chosen = {name: choice.value for name, choice in self.choices().items()}
        rates = [
            row.get("images_per_second")
            for row in self.measured.value
            if chosen.items() <= row.items()
        ]
        return rates[0] if rates else None

    def apply(self, config: Config) -> Config:
        """Return the config with the chosen options, and nothing left to measure."""
        chosen = {name: choice.value for name, choice in self.choices().items()}
        return config.model_copy(update=chosen | {"plan": "default"})


def with_tf32_named(plan: ComputePlan, device: torch.device) -> ComputePlan:
    """Return the plan, in which the reason for fp32 says if convolutions are rounded to TF32."""
    precision = plan.precision
    rounds = has_tf32(device) and _CUDNN.conv.fp32_precision == "tf32"
    if precision.value != "fp32" or not rounds:
        return plan
    reason = f"{precision.reason}; convolutions round to TF32, torch's default; products do not"
    return replace(plan, precision=replace(precision, reason=reason))


_ORDER = (  # of plan.json and of the report
    *("device", "model", "learning_rate", "batch_size", "image_size", "packed_size", "split"),
    *("images", "ranks", "class_weights", "folds"),
    *(choice.name for choice in fields(ComputePlan)),
)


@dataclass(frozen=True)
class Plan:
    """Every choice of a run with its reason."""

    choices: Mapping[str, Choice[Any]]  # by setting, or by another name for what was chosen
    measured: Choice[list[dict[str, Any]]]  # every set of compute options that was timed or refused

    def facts(self) -> dict[str, Any]:
        """Return all choices as plain values."""
        choices = {**self.choices, "measured": self.measured}
        names = [
            *(name for name in _ORDER if name in choices),
            *(name for name in choices if name not in _ORDER),
        ]
        facts = {name: asdict(choices[name]) for name in names}
        facts["device"]["value"] = str(self.choices["device"].value)
        return facts

    def save(self, path: Path) -> None:
        """Write plan.json."""
        write_json(path, self.facts())


def choose_threads(configured: int, local_ranks: int = 1) -> Choice[int]:
    """Choose the threads per rank, for decoding and for computing on the CPU; 0 leaves it open."""
    if configured:
        return Choice(configured, "set by you")
    if local_ranks > 1:
        share = max(1, usable_cores() // local_ranks)
        return Choice(share, f"this rank's share of the {usable_cores()} cores")
    return Choice(usable_cores(), "every core that this process may use")


def has_native_bf16() -> bool:
    """Return whether this CPU has instructions for bf16, and torch's kernels use them.

    Elsewhere bf16 is emulated, which was 20 times as slow as fp32.
    """
    return bool(_CPU._is_avx512_bf16_supported()) and bool(_MKLDNN._is_mkldnn_bf16_supported())


def choose_precision(configured: str, device: torch.device) -> Choice[str]:
    """Choose the precision of forward and backward.

    Raises:
        ConfigError: For fp16 without a GPU.
    """
    if configured == "fp16" and device.type == "cpu":
        raise ConfigError("--precision fp16 needs a GPU; on the CPU use fp32 or bf16")
    if configured != "auto":
        return Choice(configured, "set by you")
    if has_bf16(device):
        return Choice("bf16", "this GPU computes it natively")
    return Choice("fp32", f"exact everywhere; bf16 is not always faster on {device.type}")
