"""How long does it take from typing a command to its answer, and to the first training step?

    python benchmarks/startup.py /usr/share/datasets/fashion-mnist [--rounds 9] [--full]

Seconds of whole processes. `onsight --help`, `--version` and `import onsight` are compared with the
bare interpreter. The first training step on the demo and on Fashion-MNIST, both already decoded, is
compared with bare imports of torch and torchvision, with a hand-written loop up to its first step,
and with torch's DataLoader up to its first batch. The DataLoader's workers are started by spawn (as
on macOS and Windows) and by fork. --full measures 21 rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Everything else is imported where it is used. The peers are this same file started with --until,
# and must not pay for imports that only the comparison needs.
BATCH_SIZE = 128
EMPTY = "python -c pass"
COMMANDS = {
    EMPTY: ["-c", "pass"],
    "python -c 'import onsight'": ["-c", "import onsight"],
    "onsight --version": ["-m", "onsight", "--version"],
    "onsight --help": ["-m", "onsight", "--help"],
    "onsight train --help": ["-m", "onsight", "train", "--help"],
}
IMPORTS = {
    "python -c 'import torch'": ["-c", "import torch"],
    "python -c 'import torch, torchvision'": ["-c", "import torch, torchvision"],
}
STAGES = {
    "DataLoader over tensors, no workers, first batch": "batch-0",
    "DataLoader over tensors, 2 forked workers, first batch": "batch-fork",
    "DataLoader over tensors, 2 spawned workers, first batch": "batch-spawn",
    "hand-written loop on Fashion-MNIST, first step": "step",
}
OURS = "onsight train on Fashion-MNIST, first step"


def end_now() -> NoReturn:
    """Exit without cleanup, which should not be timed."""
    sys.stdout.flush()
    os._exit(0)


def first_step_of_onsight(data: str) -> None:
    """Run `onsight train DATA` up to its first step."""
    from onsight.cli import main as onsight
    from onsight.step.step import Step

    real_step = Step.__call__

    def step_and_end(self: Step, *inputs: Any, **more: Any) -> NoReturn:
        real_step(self, *inputs, **more)
        end_now()

    Step.__call__ = step_and_end  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        onsight(["train", data, "--out", f"{out}/run", "--device", "cpu"])


def make_loader(data: str, workers: int, context: str | None) -> "DataLoader[Any]":
    import torch
    from image_files import read_idx
    from torch.utils.data import DataLoader, TensorDataset

    pixels, labels = read_idx(Path(data), "train")
    images = TensorDataset(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.copy()).long())
    return DataLoader(
        images, BATCH_SIZE, shuffle=True, num_workers=workers, multiprocessing_context=context
    )


def first_batch(data: str, context: str) -> None:
    """Run a DataLoader up to its first batch."""
    workers = 0 if context == "0" else 2
    next(iter(make_loader(data, workers, context if workers else None)))


def first_step_by_hand(data: str) -> None:
    """Run a tutorial's loop up to its first step, with torchvision imported, as they all do."""
    import torch
    import torchvision  # noqa: F401
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16 * 36, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters())
    images, labels = next(iter(make_loader(data, 0, None)))
    loss = nn.functional.cross_entropy(net(images[:, None].float() / 255), labels)
    loss.backward()
    optimizer.step()


def run_until(stage: str, data: str) -> None:
    """Run a peer up to a stage, in a process that is timed from start to end."""
    if stage == "ours":
        first_step_of_onsight(data)
    elif stage == "step":
        first_step_by_hand(data)
    else:
        first_batch(data, stage.removeprefix("batch-"))
    end_now()


def seconds_of(arguments: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - begun


def timed(commands: dict[str, list[str]]) -> dict[str, Callable[[], float]]:
    return {name: partial(seconds_of, arguments) for name, arguments in commands.items()}


def training_commands(data: str) -> dict[str, list[str]]:
    stages = {name: [__file__, data, "--until", stage] for name, stage in STAGES.items()}
    ours = {
        OURS: [__file__, data, "--until", "ours"],
        "onsight train demo, first step": [__file__, "demo", "--until", "ours"],
    }
    return {**ours, **IMPORTS, **stages}


def show(commands: dict[str, list[float]], training: dict[str, list[float]]) -> list[str]:
    from harness import paired, table

    def rows(found: dict[str, list[float]], base: str) -> list[list[str]]:
        return [
            [name, f"{statistics.median(values):.3f}", str(paired(values, found[base]))]
            for name, values in found.items()
        ]

    return [
        *table(["command", "seconds", "/ the bare interpreter"], rows(commands, EMPTY)),
        "",
        *table(["process", "seconds", f"/ {OURS}"], rows(training, OURS)),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--until", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.until:
        run_until(options.until, options.data)
    from harness import circumstances, interleave, write_section

    rounds = 21 if options.full else options.rounds
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ONSIGHT_CACHE"] = cache  # the warm-up decodes into it
        os.environ["TMPDIR"] = cache  # for the run folders of processes that exit without cleanup
        commands = interleave(timed(COMMANDS), rounds)
        training = interleave(timed(training_commands(options.data)), rounds)
    head = ["## From the command to its answer", "", circumstances() + ".", ""]
    write_section("startup", [*head, *show(commands, training)])


if __name__ == "__main__":
    main()
