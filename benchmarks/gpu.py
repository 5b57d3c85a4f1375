"""On a CUDA GPU: how close does training come to the limit of the GPU itself?

    python benchmarks/gpu.py [--fashion FOLDER] [--data PetImages] [--cifar cifar-10-batches-py]
                             [--only lenet photos accuracy] [--rounds 3] [--full]

lenet: the tutorials' LeNet on Fashion-MNIST at batch sizes 4 to 512, float32, no augmentation, with
steps as a CUDA graph. It is compared with a hand-written loop over images on the GPU, and with the
limit: a CUDA graph of the whole step, replayed on one batch.
photos: ResNet-18 and ResNet-50 at 224x224 from JPEGs in bfloat16. They are compared with torch's
DataLoader, with torchvision's transforms and the number of workers that was fastest here, and with
the same step on one random batch.
accuracy: seconds from process start to the end of a run on Fashion-MNIST. Given CIFAR-10's own
python files, also seconds to 94%, compared with the package airbench if it is installed.

--full uses more images, epochs and rounds. --smoke runs a few steps on generated images, and prints
the tables without changing RESULTS.md. Without a CUDA GPU, the exit code is 2.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from harness import Facts, circumstances, interleave, paired, table, write_section
from image_files import FASHION, photo_folder, read_idx, write_fashion_sample, write_photos
from torch import Tensor, nn

from onsight.data.index import TEST, TRAIN
from onsight.data.sources.find import ReadOptions, find_source
from onsight.models.catalog import make_model
from onsight_explain.threads import usable_cores

BATCH_SIZES = (4, 32, 64, 128, 512)
CLASSES = 10
RATE, MOMENTUM = 0.01, 0.9
LINE_IMAGES = 6400  # between two loss lines, from which a run's rate is read
PHOTO_SIDE, PHOTO_BATCH_SIZE, MIN_AREA = 224, 128, 0.35
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WARM_UP_STEPS = 10
GOAL = 0.94
OURS = "Onsight"

Rates = dict[str, list[float]]
Batches = Iterator[tuple[Tensor, Tensor]]


def require_gpu(device: str) -> None:
    """Exit with code 2 if there is no GPU; --device cpu is for tests of this script."""
    if device == "cuda" and not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA GPU, but torch finds none", file=sys.stderr)
        raise SystemExit(2)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train(data: Path, out: Path, device: str, **flags: object) -> float:
    """Run `onsight train` in its own process; returns its seconds from start to end."""
    command = [sys.executable, "-m", "onsight", "train", data, "--out", out, "--device", device]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        command += [f"--no-{flag[2:]}"] if value is False else [flag, str(value)]
    begun = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-3000:]}")
    return time.perf_counter() - begun


def read_epochs(run: Path) -> list[Facts]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steady_rate(run: Path, batch_size: int) -> float:
    """Images per second between the first and the last line of a run's last epoch.

    The first epoch warms up the GPU, and the first steps of an epoch fill the queues.
    """
    row = read_epochs(run)[-1]
    lines = row["lines"]
    if len(lines) < 2:
        return float(row["images_per_second"])
    first, last = lines[0], lines[-1]
    seconds: float = last["seconds"] - first["seconds"]
    return float(last["step"] - first["step"]) * batch_size / seconds


def onsight_rate(data: Path, device: str, batch_size: int, **flags: object) -> float:
    """Train with Onsight; returns the steady rate."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        lines = {"log_every_steps": max(1, LINE_IMAGES // batch_size), "batch_size": batch_size}
        train(data, run, device, **lines, **flags)
        return steady_rate(run, batch_size)


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)


class Step:
    """A hand-written step: forward, loss, backward, update."""

    def __init__(self, net: nn.Module, device: str, bfloat16: bool) -> None:
        torch.backends.cudnn.benchmark = True  # usual for constant shapes
        self.net = net.to(device).to(memory_format=torch.channels_last).train()
        self.optimizer = make_optimizer(self.net)
        self.context = partial(torch.autocast, device, torch.bfloat16, enabled=bfloat16)

    def __call__(self, inputs: Tensor, labels: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.context():
            loss = nn.functional.cross_entropy(self.net(inputs), labels)
        loss.backward()
        self.optimizer.step()


def capture(step: Step, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    """Capture the step on this batch as a CUDA graph, whose replay is only the GPU's own work."""
    if inputs.device.type != "cuda":
        return partial(step, inputs, labels)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up off the main stream, as capturing requires
        for _ in range(WARM_UP_STEPS):
            step(inputs, labels)
    torch.cuda.current_stream().wait_stream(side)
    step.optimizer.zero_grad(set_to_none=True)  # so that the graph allocates its own gradients
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(inputs, labels)
    return graph.replay


def steps_rate(work: Callable[[], None], batch_size: int, device: str, seconds: float) -> float:
    """Images per second of a step, repeated for this many seconds."""
    for _ in range(WARM_UP_STEPS):
        work()
    synchronize(device)
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(WARM_UP_STEPS):
            work()
        steps += WARM_UP_STEPS
        synchronize(device)  # otherwise only queueing would be timed
    return steps * batch_size / (time.perf_counter() - begun)


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return make_model("lenet", (1, 28, 28), CLASSES)


def read_training_set(folder: Path, device: str) -> tuple[Tensor, Tensor]:
    pixels, labels = read_idx(folder, "train")
    images = torch.from_numpy(pixels.copy())[:, None].to(device)
    return images, torch.from_numpy(labels.copy()).long().to(device)


def normalized(pixels: Tensor) -> Tensor:
    return pixels.float().div_(255).sub_(0.286).div_(0.353)


def batches_by_hand(images: Tensor, labels: Tensor, batch_size: int) -> Batches:
    """Shuffled batches, epoch after epoch, from images on the device."""
    while True:
        order = torch.randperm(len(images), device=images.device)
        for ids in order[: len(order) // batch_size * batch_size].split(batch_size):
            yield normalized(images[ids]), labels[ids]


def lenet_by_hand(
    images: Tensor, labels: Tensor, batch_size: int, device: str, seconds: float
) -> float:
    step = Step(lenet(), device, bfloat16=False)
    batches = batches_by_hand(images, labels, batch_size)
    return steps_rate(lambda: step(*next(batches)), batch_size, device, seconds)


def lenet_limit(
    images: Tensor, labels: Tensor, batch_size: int, device: str, seconds: float
) -> float:
    step = Step(lenet(), device, bfloat16=False)
    work = capture(step, normalized(images[:batch_size]), labels[:batch_size])
    return steps_rate(work, batch_size, device, seconds)


def lenet_onsight(options: argparse.Namespace, batch_size: int) -> float:
    return onsight_rate(
        options.fashion,
        options.device,
        batch_size,
        model="lenet",
        epochs=options.epochs,
        optimizer="sgd",
        learning_rate=RATE,
        precision="fp32",
        cuda_graph="on" if options.device == "cuda" else "off",
        flip=False,
        translate=0,
        cache_folder=options.cache,
    )


def compare_lenet(options: argparse.Namespace) -> list[str]:
    images, labels = read_training_set(options.fashion, options.device)
    rows = []
    for size in options.batch_sizes:
        measured = (images, labels, size, options.device, options.seconds)
        works = {
            OURS: partial(lenet_onsight, options, size),
            "by hand": partial(lenet_by_hand, *measured),
            "limit": partial(lenet_limit, *measured),
        }
        rates = interleave(works, options.rounds, warm_up=False)
        rows.append([str(size), *figures(rates)])
    header = ["batch", "Onsight images/s", "hand-written loop", "replayed graph"]
    header += ["Onsight / the loop", "Onsight / the graph"]
    return ["### LeNet, Fashion-MNIST, float32", "", *table(header, rows), ""]


def figures(rates: Rates) -> list[str]:
    """The median of each contender, then our ratio to each of the others."""
    middles = [f"{statistics.median(found):,.0f}" for found in rates.values()]
    others = [found for name, found in rates.items() if name != OURS]
    return [*middles, *(str(paired(rates[OURS], found)) for found in others)]


def photo_step(model: str, options: argparse.Namespace) -> Step:
    torch.manual_seed(0)
    net = make_model(model, (3, options.photo_side, options.photo_side), 2)
    return Step(net, options.device, bfloat16=True)


def photo_loader(
    folder: Path, workers: int, options: argparse.Namespace
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Batches of torch's DataLoader with decode_image and transforms.v2, normalized on the GPU."""
    from torch.utils.data import DataLoader
    from torchvision import datasets
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    steps = [
        v2.RandomResizedCrop(options.photo_side, (MIN_AREA, 1.0), antialias=True),
        v2.RandomHorizontalFlip(),
    ]
    read = partial(decode_image, mode=ImageReadMode.RGB)
    loader = DataLoader(
        datasets.ImageFolder(folder, v2.Compose(steps), loader=read),
        options.photo_batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=options.device == "cuda",
    )
    mean, std = (
        torch.tensor(values, device=options.device).view(1, 3, 1, 1) for values in (MEAN, STD)
    )
    for images, labels in chain.from_iterable(repeat(loader)):
        inputs = images.to(options.device, non_blocking=True).float().div_(255).sub_(mean).div_(std)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        yield inputs, labels.to(options.device, non_blocking=True)


def photos_by_hand(
    model: str, folder: Path, workers: int, options: argparse.Namespace, seconds: float
) -> float:
    step = photo_step(model, options)
    batches = photo_loader(folder, workers, options)
    try:
        work = partial(take_and_step, batches, step)
        return steps_rate(work, options.photo_batch_size, options.device, seconds)
    finally:
        batches.close()


def take_and_step(batches: Batches, step: Step) -> None:
    step(*next(batches))


def photos_limit(model: str, options: argparse.Namespace) -> float:
    """The same step on one random batch on the GPU."""
    step, size = photo_step(model, options), options.photo_batch_size
    inputs = torch.randn(size, 3, options.photo_side, options.photo_side, device=options.device)
    labels = torch.randint(2, (size,), device=options.device)
    work = partial(step, inputs.contiguous(memory_format=torch.channels_last), labels)
    return steps_rate(work, size, options.device, options.seconds)


def photos_onsight(model: str, folder: Path, options: argparse.Namespace, **flags: object) -> float:
    return onsight_rate(
        folder,
        options.device,
        options.photo_batch_size,
        model=model,
        image_size=options.photo_side,
        crop_area=MIN_AREA,
        translate=0,
        epochs=options.epochs,
        optimizer="sgd",
        learning_rate=RATE,
        precision="bf16",
        cache_folder=options.cache,
        **flags,
    )


def fastest_workers(model: str, folder: Path, options: argparse.Namespace) -> tuple[int, str]:
    """The number of workers with the highest rate, and a note with the rates of all."""
    cores = usable_cores()
    rates = {
        workers: photos_by_hand(model, folder, workers, options, options.seconds / 2)
        for workers in sorted({max(1, cores // 2), max(1, cores - 1), cores})
    }
    note = ", ".join(f"{workers} workers {rate:,.0f}" for workers, rate in rates.items())
    return max(rates, key=rates.__getitem__), note


def compare_photos(options: argparse.Namespace) -> list[str]:
    folder = photo_folder(options.photos, options.data)
    rows, notes = [], []
    for model in options.photo_models:
        workers, note = fastest_workers(model, folder, options)
        works = {
            OURS: partial(photos_onsight, model, folder, options),
            "streamed": partial(photos_onsight, model, folder, options, residency="stream"),
            "DataLoader": partial(photos_by_hand, model, folder, workers, options, options.seconds),
            "limit": partial(photos_limit, model, options),
        }
        rates = interleave(works, options.rounds, warm_up=False)
        rows.append([model, *figures(rates)])
        notes.append(f"{model}, DataLoader in the tuning round: {note} images/s.")
    header = ["model", "Onsight images/s", "Onsight streamed", "DataLoader", "constant batch"]
    header += ["Onsight / streamed", "Onsight / the DataLoader", "Onsight / the constant batch"]
    title = f"### {options.photos:,} JPEGs at {options.photo_side}x{options.photo_side}, bfloat16"
    return [title, "", *table(header, rows), "", *notes, ""]


def first_at(rows: list[Facts], goal: float) -> float | None:
    """Seconds of training up to the end of the first epoch whose test accuracy reached the goal."""
    spent = 0.0
    for row in rows:
        spent += row["seconds"]
        if row.get("test_accuracy") is not None and row["test_accuracy"] >= goal:
            return float(spent)
    return None


def timed_run(data: Path, options: argparse.Namespace, **flags: object) -> Facts:
    """Time a complete run; returns its seconds, accuracy and epochs."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        seconds = train(data, run, options.device, cache_folder=options.cache, **flags)
        results = json.loads((run / "results.json").read_text())
        return {"seconds": seconds, "accuracy": results["accuracy"], "rows": read_epochs(run)}


def describe_runs(runs: list[Facts]) -> list[str]:
    """Cells of a row: median seconds, median accuracy, number of runs."""
    seconds = statistics.median(run["seconds"] for run in runs)
    accuracy = statistics.median(run["accuracy"] for run in runs)
    return [f"{seconds:,.1f}", f"{100 * accuracy:.2f}%", str(len(runs))]


def write_tensors(cifar: Path, place: Path) -> None:
    """Write CIFAR-10 in airbench's format, so that it downloads nothing."""
    place.mkdir()
    # Onsight's reader runs no code from the pickles.
    source = find_source(str(cifar), ReadOptions(data_format="cifar"))
    for name, split in (("train", TRAIN), ("test", TEST)):
        rows = np.flatnonzero(source.index.splits == split)
        images = np.stack([source.read(int(row)) for row in rows])
        labels = source.index.labels[rows].tolist()
        tensors = {"images": torch.from_numpy(np.ascontiguousarray(images)), "classes": []}
        torch.save({**tensors, "labels": torch.tensor(labels)}, place / f"{name}.pt")


AIRBENCH = """
import json, time
begun = time.perf_counter()
import airbench, torch
airbench.warmup94(verbose=False)
torch.cuda.synchronize()
ready = time.perf_counter()
net = airbench.train94(verbose=False)
torch.cuda.synchronize()
done = time.perf_counter()
test = airbench.CifarLoader("cifar10", train=False)
print(json.dumps({"training": done - ready, "accuracy": airbench.evaluate(net, test, 2),
                  "seconds": time.perf_counter() - begun}))
"""


def run_airbench(cifar: Path) -> Facts:
    """Run airbench's training to 94% in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(cifar, Path(folder) / "cifar10")
        done = subprocess.run(
            [sys.executable, "-c", AIRBENCH], cwd=folder, stdout=subprocess.PIPE, check=True
        )
    facts: Facts = json.loads(done.stdout.splitlines()[-1])
    return facts


def compare_cifar(options: argparse.Namespace) -> list[list[str]]:
    """Rows for Onsight's run, its time to the goal, and airbench."""
    flags = {"config": options.cifar_config} if options.cifar_config else {"epochs": 30}
    runs = [
        timed_run(options.cifar, options, test_each_epoch=True, **flags)
        for _ in range(options.rounds)
    ]
    reached = [first_at(run["rows"], GOAL) for run in runs]
    times = [seconds for seconds in reached if seconds is not None]
    median = f"{statistics.median(times):,.1f}" if times else "not reached"
    rows = [
        ["CIFAR-10, Onsight, process", *describe_runs(runs)],
        [f"CIFAR-10, Onsight, training until {GOAL:.0%}", median, "", f"{len(times)}/{len(runs)}"],
    ]
    if find_spec("airbench") and options.device == "cuda":
        peers = [run_airbench(options.cifar) for _ in range(options.rounds)]
        training = statistics.median(peer["training"] for peer in peers)
        accuracy = f"{100 * statistics.median(peer['accuracy'] for peer in peers):.2f}%"
        rows.append(["CIFAR-10, airbench, process", *describe_runs(peers)])
        rows.append(
            ["CIFAR-10, airbench, training alone", f"{training:,.1f}", accuracy, str(len(peers))]
        )
    return rows


def compare_accuracy(options: argparse.Namespace) -> list[str]:
    epochs = 10 if options.full else options.epochs
    runs = [
        timed_run(options.fashion, options, model="compact", epochs=epochs)
        for _ in range(options.rounds)
    ]
    rows = [[f"Fashion-MNIST, {epochs} epochs, Onsight, process", *describe_runs(runs)]]
    if options.cifar:
        rows += compare_cifar(options)
    note = (
        "airbench averages several views of each test image, and its training time excludes "
        "imports, loading and a warm-up."
    )
    return [
        "### Complete runs",
        "",
        *table(["run", "seconds", "accuracy", "runs"], rows),
        "",
        note,
        "",
    ]


PARTS = {"lenet": compare_lenet, "photos": compare_photos, "accuracy": compare_accuracy}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--data", type=Path, help="a folder like PetImages; otherwise one is made")
    parser.add_argument("--cifar", type=Path, help="CIFAR-10's python files")
    parser.add_argument("--cifar-config", type=Path, help="a TOML file for the run on CIFAR-10")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=0, help="3, with --full 7")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="a few steps on generated images")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each hand-written loop")
    parser.add_argument("--epochs", type=int, default=2, help="of each Onsight run")
    parser.add_argument("--photos", type=int, default=0, help="another number of photographs")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(BATCH_SIZES))
    parser.add_argument("--photo-batch-size", type=int, default=PHOTO_BATCH_SIZE)
    parser.add_argument("--photo-side", type=int, default=PHOTO_SIDE)
    parser.add_argument("--photo-models", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.smoke:
        options.rounds, options.photos, options.seconds, options.epochs = 1, 256, 0.3, 1
        options.batch_sizes, options.photo_batch_size = [64], 32
        options.photo_models = ["resnet18"]
    if options.device == "cpu":
        options.photo_side, options.photos, options.photo_batch_size = 32, 64, 16
        options.photo_models = ["test_resnet"]
    options.rounds = options.rounds or (7 if options.full else 3)
    options.photos = options.photos or (25_000 if options.full else 5_000)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    require_gpu(options.device)
    with tempfile.TemporaryDirectory() as folder:
        options.cache = f"{folder}/cache"
        if options.smoke:
            options.fashion, options.data = Path(folder, "fashion"), Path(folder, "PetImages")
            options.fashion.mkdir()
            write_fashion_sample(options.fashion, 1200, 200)
            write_photos(options.data, options.photos)
        lines = list(chain.from_iterable(PARTS[name](options) for name in options.only))
    head = ["## On a GPU", "", circumstances("timm", "simplejpeg") + ".", ""]
    if options.smoke:
        print("\n".join([*head, *lines]))
    else:
        write_section("gpu", [*head, *lines])


if __name__ == "__main__":
    main()
