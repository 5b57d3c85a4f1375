"""Does the simulated device predict this GPU, and how close is a step to a bare graph replay?

    python benchmarks/card.py [--seconds 1] [--batch-sizes 4 16 64 256 1024]

There are three parts, on images of noise. All results are written into RESULTS.md.

claims: what the tests assert on the simulated GPU, checked on the real one. The host never waits in
a step; steps replayed as a graph, and a second run, give the same bits; the losses are those of the
CPU; the number of launches (by torch.profiler, on CUDA).
steps: images/s of single and of replayed training steps, including batches and augmentation. They
are compared with replaying the bare forward, loss, backward and update on one batch, and LeNet also
with the CPU.
phases: the phases of LeNet and resnet18 by `onsight explain`, compared with torch.profiler's.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import circumstances, table, write_section

from onsight.config import Config, make_config
from onsight.data.loader import Batch, Images, Loader
from onsight.data.normalization import measure_normalization
from onsight.explainer.step_record import record_step
from onsight.hardware.reproducible import reproducible
from onsight.step.build import make_net, make_update
from onsight.step.graphed import GraphedStep, watch_waits
from onsight.step.update import Update
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial
from onsight_explain.devices import has_graphs, module_of
from onsight_explain.tracing.device_time import effective_phases

SIDE, CLASSES, IMAGES = 32, 10, 16_384
MODELS = ("lenet", "compact", "sprint")
BATCH_SIZES = (4, 16, 64, 256, 1024)
STEPS = 40
WARM_UP_STEPS = 24
CPU = torch.device("cpu")

Batches = Iterator[tuple[int, int, Batch]]


def make_noise_dataset(images: int) -> Any:  # in place of a Dataset
    """The parts of a dataset that training needs, with images of noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, SIDE * SIDE * 3), generator=generator).byte()
    ids = torch.arange(images)
    resident = Images(pixels, ids, ids % CLASSES, (SIDE, SIDE, 3))
    return SimpleNamespace(
        images=resident,
        input_shape=(3, SIDE, SIDE),
        classes=[str(number) for number in range(CLASSES)],
        counts=lambda split: np.full(CLASSES, images // CLASSES),
        ids=lambda split: ids,
    )


def make_training_config(model: str, batch_size: int, **fields: Any) -> Config:
    settings = {"model": model, "precision": "fp32", "learning_rate": 2**-10, **fields}
    config = make_config({"compile": "off", "cuda_graph": "off", "epochs": 10, **settings})
    return config.model_copy(update={"batch_size": batch_size})


def make_training(
    model: str, device: torch.device, batch_size: int, images: int = 0, **fields: Any
) -> tuple[Update, Batches]:
    """An update, and the batches for it with their epochs and steps."""
    dataset = make_noise_dataset(images or IMAGES)
    config, resident = make_training_config(model, batch_size, **fields), dataset.images
    net = make_net(config, dataset, device).train()
    update = make_update(
        config, net, dataset, measure_normalization(resident, resident.rows[:1000]), device
    )
    loader = Loader(resident.to(device), resident.rows, batch_size, device)
    return update, full_batches(loader)


def full_batches(loader: Loader) -> Batches:
    """Yield batches of full size, epoch after epoch."""
    for epoch in count():
        for step, batch in enumerate(loader.epoch(0, epoch)):
            if len(batch.ids) == loader.batch_size:
                yield epoch, step, batch


def train(update: Update, batches: Batches, steps: int) -> list[float]:
    losses = []
    for epoch, step, batch in islice(batches, steps):
        losses += update(batch, epoch, step)
    return losses


def train_briefly(
    model: str, device: torch.device, **fields: Any
) -> tuple[list[float], list[torch.Tensor], Update]:
    """Train some steps of 64 images; returns losses, weights and the update."""
    update, batches = make_training(model, device, 64, min(IMAGES, 2048), **fields)
    losses = train(update, batches, STEPS) + update.step.flush()
    return (
        losses,
        [parameter.detach().cpu() for parameter in update.step.model.parameters()],
        update,
    )


def describe_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    """The largest difference between two lists of weights."""
    largest = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return "identical bits" if largest == 0 else f"a difference of at most {largest:.1e}"


def count_waits(model: str, device: torch.device) -> str:
    update, batches = make_training(model, device, 64)
    train(update, batches, WARM_UP_STEPS)
    with watch_waits(device) as lines:
        train(update, batches, STEPS)
    return f"{len(lines) / STEPS:g} waits per step" + (f" ({lines[0]})" if lines else "")


def compare_graph(model: str, device: torch.device) -> str:
    _, plain, _ = train_briefly(model, device)
    _, replayed, update = train_briefly(model, device, cuda_graph="on")
    assert isinstance(update.step, GraphedStep)
    return update.step.refused or describe_difference(plain, replayed)


def compare_second_run(model: str, device: torch.device) -> str:
    return describe_difference(*(train_briefly(model, device)[1] for _ in range(2)))


def compare_with_cpu(model: str, device: torch.device) -> str:
    ours, theirs = (train_briefly(model, where)[0] for where in (device, CPU))
    error = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    return f"losses of {STEPS} steps within {error:.1e}"


def count_launches(model: str, device: torch.device, cuda_graph: str) -> str:
    if device.type != "cuda":
        return "measured only on CUDA, with torch.profiler"
    update, batches = make_training(model, device, 64, cuda_graph=cuda_graph)
    train(update, batches, WARM_UP_STEPS)
    with torch.profiler.profile() as profile:
        train(update, batches, STEPS)
        torch.cuda.synchronize()
    names = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaGraphLaunch")
    found = sum(row.count for row in profile.key_averages() if row.key.startswith(names))
    return f"{found / STEPS:.1f} launches per step"


CLAIMS: dict[str, Callable[[str, torch.device], str]] = {
    "host waits per step (simulated: 0, except for losses of earlier steps)": count_waits,
    "steps as a graph, compared with one by one": compare_graph,
    "a second run": compare_second_run,
    "compared with the CPU": compare_with_cpu,
    "launches, one by one (41, 91 and 52 on the simulated device)": lambda m, d: count_launches(
        m, d, "off"
    ),
    "launches, as a graph (about 1)": lambda m, d: count_launches(m, d, "on"),
}


def check_claims(device: torch.device, models: Sequence[str]) -> list[str]:
    """A table with a row for each claim and a column for each model."""
    wanted = {
        name: check for name, check in CLAIMS.items() if has_graphs(device) or "graph" not in name
    }
    rows = [[name, *(check(model, device) for model in models)] for name, check in wanted.items()]
    return table(["claim", *models], rows)


def measure_rate(
    model: str, device: torch.device, batch_size: int, cuda_graph: str, seconds: float
) -> float:
    """Images per second of the update, measured over about this many seconds."""
    update, batches = make_training(model, device, batch_size, cuda_graph=cuda_graph)
    train(update, batches, WARM_UP_STEPS)
    synchronize(update.step.device)
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        train(update, batches, WARM_UP_STEPS)
        steps += WARM_UP_STEPS
        synchronize(update.step.device)
    return steps * batch_size / (time.perf_counter() - begun)


def measure_bare_replay(model: str, device: torch.device, batch_size: int, seconds: float) -> float:
    """The limit: images per second of a bare step on one batch, replayed as a graph."""
    fields: dict[str, Any] = {"cuda_graph": "on", "flip": False, "translate": 0.0}
    update, batches = make_training(model, device, batch_size, **fields)
    train(update, batches, WARM_UP_STEPS)
    step = update.step
    if not isinstance(step, GraphedStep) or step.recording is None:
        return 0.0
    replay, steps_per_replay = step.recording.graph.replay, step.steps_per_replay
    synchronize(device)
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(WARM_UP_STEPS):
            replay()
        steps += WARM_UP_STEPS * steps_per_replay
        synchronize(device)
    return steps * batch_size / (time.perf_counter() - begun)


def compare_steps(
    device: torch.device, models: Sequence[str], sizes: Sequence[int], seconds: float
) -> list[str]:
    """A table with a row for each model and batch size."""
    rows = []
    for model in models:
        for size in sizes:
            eager, replayed = (
                measure_rate(model, device, size, graph, seconds) for graph in ("off", "on")
            )
            limit = measure_bare_replay(model, device, size, seconds)
            ratios = [f"{replayed / eager:.2f}", f"{replayed / limit:.2f}" if limit else ""]
            rows.append([model, f"{size:,}", *(f"{x:,.0f}" for x in (eager, replayed, limit))])
            rows[-1] += ratios
    header = ["model", "batch", "one by one", "as a graph", "bare replay"]
    return table([*header, "graph / one by one", "graph / bare"], rows)


def compare_lenet_with_cpu(device: torch.device, sizes: Sequence[int], seconds: float) -> list[str]:
    """Is a GPU slower than the CPU? A table with a row for each batch size of LeNet."""
    rows = []
    for size in sizes:
        on_cpu, eager, replayed = (
            measure_rate("lenet", where, size, graph, seconds)
            for where, graph in ((CPU, "off"), (device, "off"), (device, "on"))
        )
        figures = [f"{found:,.0f}" for found in (on_cpu, eager, replayed)]
        rows.append([f"{size:,}", *figures, f"{eager / on_cpu:.1f}", f"{replayed / on_cpu:.1f}"])
    header = ["batch", "CPU", "GPU, one by one", "GPU, as a graph", "one by one / CPU"]
    return table([*header, "graph / CPU"], rows)


def measure_phases(model: str, device: torch.device, seconds: float) -> list[str]:
    """A row: milliseconds per step by Onsight's phases, and of kernels by torch.profiler."""
    dataset, batch_size = make_noise_dataset(IMAGES), 64
    threads = torch.get_num_threads()
    config = make_training_config(model, batch_size, pretrained=False, threads=threads)
    scaling = measure_normalization(dataset.images, dataset.images.rows[:1000])
    trial = Trial(config, TrainingData(dataset, dataset.images.to(device), scaling, device))
    record = record_step(trial, batch_size, seconds)
    train = trial.timer(batch_size)
    train(1)
    with torch.profiler.profile() as profile:
        train(STEPS)
    kernels = sum(row.self_device_time_total for row in profile.key_averages()) / 1000 / STEPS
    timed = effective_phases(record.phases, record.device_phases)
    own = sorted(timed.items(), key=lambda item: -item[1])
    words = [f"{name} {1000 * spent / record.steps:.3f}" for name, spent in own if spent > 0]
    return [model, f"{1000 * record.step_seconds:.3f}", ", ".join(words), f"{kernels:.3f}"]


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        module_of(device).synchronize(device)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=())
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--device", default="cuda:0", help="or simulated:1")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("benchmarks/card.py needs a GPU, but torch finds none")
        torch.cuda.set_device(device)
    sizes = options.batch_sizes or BATCH_SIZES
    with reproducible(2):
        lines = [
            "## The simulated device's claims on a real GPU",
            "",
            circumstances(),
            "",
            *check_claims(device, options.models),
        ]
        lines += ["", "Images/s of training steps, including batches and augmentation:", ""]
        lines += compare_steps(device, options.models[:2], sizes, options.seconds)
        lines += ["", "LeNet on the GPU and on the CPU, images/s:", ""]
        lines += compare_lenet_with_cpu(device, sizes, options.seconds)
    if device.type == "cuda":  # torch.profiler shows the kernels of no other device
        lines += ["", "Milliseconds per step of 64 images, one by one:", ""]
        header = ["model", "step", "phases, by the device's clock"]
        rows = [measure_phases(model, device, options.seconds) for model in ("lenet", "resnet18")]
        lines += table([*header, "kernels, by torch.profiler"], rows)
    if options.batch_sizes or device.type != "cuda":
        print("\n".join(lines))
    else:
        write_section("card", lines)


if __name__ == "__main__":
    main()
