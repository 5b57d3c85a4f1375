"""How fast are evaluation and prediction with a trained model, compared with hand-written loops?

    python benchmarks/throughput.py /usr/share/datasets/fashion-mnist [--full] [--rounds 5]

Evaluation: Fashion-MNIST's 10,000 test pictures. Prediction: the same pictures as PNG files, and
JPEGs of about 500x375 (2,000; 10,000 with --full). Each model is trained here for one epoch. The
hand-written loops use the same weights with inference_mode, channels last, and the batch size and
number of DataLoader workers that were fastest in this run. There are two figures each: pictures
per second in a warm process, and seconds from process start to end, where `onsight eval` and
`onsight predict` are compared with scripts that do the same and nothing more.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

# Everything else is imported where it is used: the hand-written scripts are this same file started
# with --script, and they must not pay for what only the comparison needs.
BATCH_SIZES = (64, 256, 1000)
QUICK_BATCH_SIZE = 256


class Files(Dataset):
    """Picture files one by one, as a hand-written script reads them: PIL, resize, float tensor."""

    def __init__(self, paths: list[str], size: tuple[int, int], grey: bool) -> None:
        from torchvision import transforms

        self.paths = paths
        self.mode = "L" if grey else "RGB"
        self.draft = (size[1] * 2, size[0] * 2)
        self.transform = transforms.Compose([transforms.Resize(size), transforms.ToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Tensor:
        from PIL import Image

        with Image.open(self.paths[number]) as image:
            image.draft(self.mode, self.draft)  # JPEGs are decoded at a smaller scale
            return self.transform(image.convert(self.mode))


def list_files(folder: Path) -> list[str]:
    """Every file below a folder, in order."""
    return sorted(
        os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names
    )


def constants(facts: dict) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(facts[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    return mean, std


def by_hand(net: nn.Module, facts: dict, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The logits of batches of float pictures from 0 to 1."""
    mean, std = constants(facts)
    net.eval()
    with torch.inference_mode():
        for inputs in batches:
            inputs = inputs.to(memory_format=torch.channels_last)
            yield net((inputs - mean) / std)


def evaluate_by_hand(
    net: nn.Module, facts: dict, pixels: Tensor, labels: Tensor, workers: int, batch_size: int
) -> int:
    """How many of the pictures, float (n, C, H, W), are classified correctly, by a DataLoader."""
    loader = DataLoader(TensorDataset(pixels, labels), batch_size, num_workers=workers)
    truth = labels.split(batch_size)
    outputs = by_hand(net, facts, (inputs for inputs, _ in loader))
    return sum(int((out.argmax(1) == true).sum()) for out, true in zip(outputs, truth, strict=True))


def evaluate_slices(
    net: nn.Module, facts: dict, pixels: Tensor, labels: Tensor, batch_size: int
) -> int:
    """The same without a DataLoader: slices of one tensor."""
    outputs = by_hand(net, facts, pixels.split(batch_size))
    truth = labels.split(batch_size)
    return sum(int((out.argmax(1) == true).sum()) for out, true in zip(outputs, truth, strict=True))


def predict_by_hand(
    net: nn.Module, facts: dict, paths: list[str], workers: int, batch_size: int
) -> Tensor:
    """Probabilities (n, K) of the pictures in these files."""
    size = (facts["height"], facts["width"])
    files = Files(paths, size, facts["channels"] == 1)
    loader = DataLoader(files, batch_size, num_workers=workers)
    return torch.cat([logits.softmax(1) for logits in by_hand(net, facts, loader)])


def read_test_set(folder: Path) -> tuple[Tensor, Tensor]:
    """Fashion-MNIST's test pictures as float (n, 1, 28, 28) from 0 to 1, and their labels."""
    from image_files import read_idx

    pixels, labels = read_idx(folder, "t10k")
    return torch.from_numpy(pixels.copy())[:, None].float() / 255, torch.from_numpy(
        labels.copy()
    ).long()


def load_net(model: Path) -> tuple[nn.Module, dict, list[str]]:
    """A hand-written script's model: the default net with its weights, loaded the fastest way."""
    from safetensors import safe_open

    from onsight.models.compact import Compact

    with safe_open(model, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    picture, classes = facts["picture"], facts["classes"]
    net = Compact((picture["channels"], picture["height"], picture["width"]), len(classes))
    net.load_state_dict({key: weights[key] for key in net.state_dict()})
    return net.to(memory_format=torch.channels_last), picture, classes


def run_script(kind: str, model: Path, data: Path, workers: int, batch_size: int) -> None:
    """What somebody would write to evaluate or predict with this one model, and no more."""
    net, facts, classes = load_net(model)
    if kind == "evaluate":
        pixels, labels = read_test_set(data)
        right = evaluate_by_hand(net, facts, pixels, labels, workers, batch_size)
        print(json.dumps({"right": right, "n": len(labels)}))
        return
    paths = list_files(data)
    best = predict_by_hand(net, facts, paths, workers, batch_size).max(1)
    with tempfile.TemporaryFile("w", newline="") as file:
        rows = zip(paths, best.indices.tolist(), best.values.tolist(), strict=True)
        csv.writer(file).writerows((path, classes[number], share) for path, number, share in rows)
    print(json.dumps({"n": len(paths)}))


def make_pngs(source: Path, folder: Path) -> Path:
    """The test pictures as grey PNG files."""
    from image_files import read_idx
    from PIL import Image

    folder.mkdir()
    for number, pixels in enumerate(read_idx(source, "t10k")[0]):
        Image.fromarray(pixels).save(folder / f"{number:05}.png")
    return folder


def train_model(data: Path, out: Path, cache: Path) -> Path:
    """A model trained for one epoch; only its speed matters, not its accuracy."""
    from onsight.report.console import SilentReporter
    from onsight.training.run import train

    run = train(
        data, out=out, epochs=1, device="cpu", cache_folder=str(cache), reporter=SilentReporter()
    )
    return run.model


def pictures_a_second(work: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def process_seconds(*command: str | Path) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - begun


def fastest(candidates: dict[str, Callable[[], object]], count: int) -> tuple[str, str]:
    """The name of the fastest of several settings, and a note with the rates of all."""
    rates = {name: pictures_a_second(work, count) for name, work in candidates.items()}
    note = ", ".join(f"{name}: {rate:,.0f}" for name, rate in rates.items())
    return max(rates, key=rates.__getitem__), note


def settings(function: Callable[..., object], *inputs: object) -> dict[str, Callable[[], object]]:
    """The function with every number of workers and batch size worth trying."""
    from onsight.hardware.cores import usable_cores

    return {
        f"{workers} workers, batch {size}": partial(
            function, *inputs, workers=workers, batch_size=size
        )
        for workers in sorted({0, 1, 2, usable_cores()})
        for size in BATCH_SIZES
    }


def read_setting(name: str) -> tuple[str, str]:
    """The arguments of --script for a setting's name."""
    workers, _, size = name.partition(" workers, batch ")
    return workers, size


class Comparison:
    """The rates of one task's contenders, warm and as processes, and how they were tuned."""

    def __init__(self, title: str, count: int, rounds: int) -> None:
        self.title = title
        self.count = count
        self.rounds = rounds
        self.lines: list[str] = []

    def warm(self, works: dict[str, Callable[[], object]], note: str) -> None:
        """Pictures per second; the first contender is Onsight."""
        from harness import interleave

        timed = {name: partial(pictures_a_second, work, self.count) for name, work in works.items()}
        self._add(interleave(timed, self.rounds), "images/s", "Onsight's rate / its rate", False)
        self.lines += [f"Hand-written, in the tuning round: {note} images/s.", ""]

    def cold(self, commands: dict[str, list[str | Path]]) -> None:
        """Seconds of whole processes; the first contender is Onsight."""
        from harness import interleave

        timed = {name: partial(process_seconds, *command) for name, command in commands.items()}
        rates = interleave(timed, self.rounds)
        self._add(rates, "seconds, start to end", "its seconds / Onsight's", True)

    def _add(self, found: dict[str, list[float]], unit: str, ratio: str, seconds: bool) -> None:
        from harness import paired, table

        ours = next(iter(found))
        rows = []
        for name, values in found.items():
            pair = paired(values, found[ours]) if seconds else paired(found[ours], values)
            middle = statistics.median(values)
            figure = f"{middle:,.2f}" if seconds else f"{middle:,.0f}"
            rows.append([name, figure, "" if name == ours else str(pair)])
        self.lines += [
            f"### {self.title}: {unit}",
            "",
            *table(["contender", unit, ratio], rows),
            "",
        ]


def compare_evaluation(model: Path, data: Path, rounds: int) -> list[str]:
    from onsight.evaluation.per_image import evaluate_batches
    from onsight.inference.predictor import load

    predictor = load(model, device="cpu")
    net, facts, _ = load_net(model)
    pixels, labels = read_test_set(data)
    loader = test_loader(predictor, data)
    works = settings(evaluate_by_hand, net, facts, pixels, labels)
    best, note = fastest(works, len(labels))
    sizes = {f"batch {size}": partial(evaluate_slices, net, facts, pixels, labels, size)
             for size in BATCH_SIZES}  # fmt: skip
    slices, more = fastest(sizes, len(labels))
    table = Comparison(f"Evaluation of {len(labels):,} Fashion-MNIST pictures", len(labels), rounds)
    table.warm(
        {
            "Onsight, from the pack": lambda: evaluate_batches(
                predictor.classifier, loader.in_order()
            ),
            f"DataLoader over tensors, {best}": works[best],
            f"slices of one float tensor, {slices}": sizes[slices],
        },
        f"{note}, slices of {more}",
    )
    table.cold(
        {
            "onsight eval": ["-m", "onsight", "eval", model, data, "--device", "cpu", "--json"],
            f"hand-written script, {best}": script("evaluate", model, data, best),
        }
    )
    return table.lines


def test_loader(predictor, data: Path):
    """The test pictures as `onsight eval` gathers them from the pack."""
    from onsight.data.cache import find_cache_folder
    from onsight.data.index import TEST
    from onsight.data.loader import Loader, Pictures
    from onsight.data.pack import open_pack
    from onsight.data.packing import Job
    from onsight.data.sources.find import find_source
    from onsight.evaluation.per_image import BATCH_SIZE
    from onsight.hardware.cores import usable_cores

    source = find_source(str(data))
    pack = open_pack(Job(source, predictor.format, threads=usable_cores()), find_cache_folder())
    ids = torch.from_numpy((pack.index.splits == TEST).nonzero()[0])
    return Loader(Pictures.of(pack), ids, BATCH_SIZE, torch.device("cpu"))


def compare_prediction(title: str, model: Path, folder: Path, rounds: int) -> list[str]:
    from onsight.inference.predictor import load

    predictor = load(model, device="cpu")
    net, facts, _ = load_net(model)
    paths = list_files(folder)
    works = settings(predict_by_hand, net, facts, paths)
    best, note = fastest(works, len(paths))
    table = Comparison(f"Prediction of {len(paths):,} {title}", len(paths), rounds)
    table.warm(
        {
            "Onsight": lambda: predictor.predict_proba(paths),
            f"DataLoader over files, {best}": works[best],
        },
        note,
    )
    with tempfile.TemporaryDirectory() as out:
        rows = Path(out) / "rows.csv"
        ours = ["-m", "onsight", "predict", model, folder, "--device", "cpu"]
        table.cold(
            {
                "onsight predict": [*ours, "--csv", rows],
                f"hand-written script, {best}": script("predict", model, folder, best),
            }
        )
    return table.lines


def script(kind: str, model: Path, data: Path, setting: str) -> list[str | Path]:
    """The arguments after the interpreter that start this file as a hand-written script."""
    return [__file__, data, "--script", kind, "--model", model, *read_options(setting)]


def read_options(setting: str) -> list[str]:
    workers, size = read_setting(setting)
    return ["--workers", workers, "--batch-size", size]


def compare(options: argparse.Namespace) -> list[str]:
    from image_files import photo_folder

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ONSIGHT_CACHE"] = str(folder / "cache")  # for eval and predict as processes
        model = train_model(options.data, folder / "fashion", folder / "cache")
        pngs = make_pngs(options.data, folder / "png")
        photos = photo_folder(options.photos or (10_000 if options.full else 2_000), options.pets)
        photo_model = train_model(photos, folder / "pets", folder / "cache")
        return [
            *compare_evaluation(model, options.data, options.rounds),
            *compare_prediction("PNG files of 28x28", model, pngs, options.rounds),
            *compare_prediction("JPEGs of about 500x375", photo_model, photos, options.rounds),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--photos", type=int, default=0, help="another number of photographs")
    parser.add_argument("--pets", type=Path, help="a folder like PetImages; otherwise one is made")
    parser.add_argument("--script", choices=("evaluate", "predict"), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, default=QUICK_BATCH_SIZE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.script:
        run_script(options.script, options.model, options.data, options.workers, options.batch_size)
        return
    from harness import circumstances, write_section

    lines = compare(options)
    head = [
        "## Evaluation and prediction with a trained model",
        "",
        circumstances("pillow") + ".",
        "",
    ]
    write_section("throughput", [*head, *lines])


if __name__ == "__main__":
    main()
