"""Write docs/recipes.md: the published results of the recipes, and what was measured here.

    python scripts/recipes_page.py RUNS

RUNS holds the run folders dogs-vs-cats, dogs-vs-cats-again (reopened from the cache),
cifar10-lenet, cifar10-lenet-32 (at --batch-size 32), cifar10-quick and vectors-1, -2 and -3
(data-parallel with that many ranks). Every measured figure comes from their files.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.config_files import read_about

PAGE = Path(__file__).parents[1] / "docs/recipes.md"
HEADER = """# Recipes and their sources

Five widely read tutorials train an image classifier on a GPU. `onsight train --recipe NAME` trains
what each of them trains; the tables show their published figures beside ours, with the machines.

CIFAR-10 and PetImages cannot be redistributed, so `scripts/make_stand_ins.py` makes stand-ins with
the same layout, size and number of images. **Compare counts, rates and times, not accuracies.**
With the real files in place, the same commands run unchanged. Our figures are of CPUs; what ran on
a GPU is in [Simulated device](simulated_device.md#on-a-real-gpu). `scripts/recipes_page.py` writes
this page from the files of the runs.
"""


@dataclass
class Run:
    """The files of a run folder."""

    results: dict[str, Any]
    epochs: list[dict[str, Any]]
    environment: dict[str, Any]
    plan: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run folder."""
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return cls(
            json.loads((folder / "results.json").read_text()),
            [json.loads(line) for line in lines],
            json.loads((folder / "environment.json").read_text()),
            json.loads((folder / "plan.json").read_text()),
        )

    @property
    def machine(self) -> str:
        """The processor, memory and torch version of the run."""
        cores, memory = self.environment["cores"], self.environment["memory_bytes"] / 2**30
        name = self.environment["processor"]
        return f"{name}, {cores} cores, {memory:.0f} GiB, torch {self.version('torch')}"

    def version(self, package: str) -> str:
        """Return the version of a package that the run used."""
        return str(self.environment["versions"][package])

    @property
    def accuracy(self) -> str:
        """The accuracy with its interval and the number of test images."""
        keys = ("accuracy", "accuracy_low", "accuracy_high")
        accuracy, low, high = (100 * self.results[key] for key in keys)
        return f"{accuracy:.2f}% ({low:.2f} to {high:.2f}, n = {self.results['images']:,})"

    @property
    def decoded_per_second(self) -> float:
        """The number of files decoded per second, including broken ones."""
        files = self.results["used"] + self.results["problems"]
        return float(files / self.results["phases"]["decode"])

    @property
    def tested_per_second(self) -> float:
        """The number of test images evaluated per second."""
        return float(self.results["images"] / self.results["phases"]["test"])

    @property
    def training_seconds(self) -> float:
        """The seconds that training took."""
        return float(self.results["phases"]["training"])

    def losses(self, epoch: int) -> str:
        """Return the losses that an epoch, counted from 0, logged."""
        return " ".join(f"{line['loss']:.3f}" for line in self.epochs[epoch]["lines"])

    def seconds_between(self, first: int, last: int) -> float:
        """Return the seconds between two logged steps of the first epoch."""
        at = {line["step"]: line["seconds"] for line in self.epochs[0]["lines"]}
        return float(at[last] - at[first])


Row = tuple[str, str, str, str]


def dogs_vs_cats(run: Run, again: Run) -> list[Row]:
    """Compare the run, and one whose images were already decoded, with the source."""
    results, epochs = run.results, len(run.epochs)
    reopened = again.results["phases"]["decode"]
    return [
        (
            "files",
            "25,002, of which 24,946 usable; the others are skipped silently",
            f"{results['used'] + results['problems']:,}: {results['used']:,} used, "
            f"{results['problems']} listed with their reasons",
            "the stand-in contains 54 broken images and two Thumbs.db",
        ),
        (
            "decoding",
            "19 to 21 images/s",
            f"{run.decoded_per_second:,.0f} images/s; {reopened:.2f} s for all in the second run",
            "JPEGs are decoded at a reduced scale, in threads, once, and cached",
        ),
        (
            f"{epochs} epochs of {results_train(run):,} images",
            "30.5 s on a Tesla M60; more than 60 s per epoch on a CPU",
            f"{run.training_seconds:.1f} s, {run.training_seconds / epochs:.1f} s per epoch",
            "the same network and arithmetic, on two CPU cores",
        ),
        (
            "loss by epoch",
            "0.251 0.208 0.188 0.156 0.135 (of the last batch)",
            " ".join(f"{row['train_loss']:.3f}" for row in run.epochs) + " (mean of the epoch)",
            "other images; the loss of one batch says little",
        ),
        (
            "evaluation",
            "1,024 images/s, one by one",
            f"{run.tested_per_second:,.0f} images/s",
            "in batches of 256",
        ),
        (
            "accuracy",
            "0.71, n = 2,494",
            run.accuracy,
            "the stand-in's task is to tell crops of two groups of photographs apart, not dogs "
            "from cats; the test images are chosen by digest, not by a shuffle",
        ),
    ]


def results_train(run: Run) -> int:
    """Return the number of training images."""
    return sum(row["train_images"] for row in run.results["classes"])


def lenet(run: Run, larger: Run) -> list[Row]:
    """Compare the run, and one with larger batches, with the source."""
    seconds = larger.seconds_between(200, 1400)
    last = len(run.epochs) - 1
    return [
        (
            "mean loss every 2,000 steps, epoch 1",
            "2.229 1.893 1.672 1.574 1.534 1.481",
            run.losses(0),
            "Fashion-MNIST is easier than CIFAR-10, and has 60,000 training images instead of "
            "50,000",
        ),
        (
            f"the same, epoch {last + 1}",
            "0.773 0.777 0.820 0.835 0.859 0.859",
            run.losses(last),
            "as above",
        ),
        (
            "10 epochs at batch 4",
            "not given",
            f"{run.training_seconds:.1f} s, {run.results['images_per_second']:,.0f} images/s",
            "",
        ),
        (
            "batch 32, steps 200 to 1,400 (38,400 images)",
            "7 s on a GTX 1080 Ti, 16 s on a Core i7-7800X with 12 threads (2,400 images/s)",
            f"{seconds:.2f} s ({38_400 / seconds:,.0f} images/s), "
            f"{38_400 / seconds / 2400:.1f} times the source's CPU",
            "images are decoded once and batches gathered from memory, without worker processes; "
            "torch's own step, whose speed varies by 40% on this machine, is what remains",
        ),
        (
            "accuracy on all test images",
            "computed, not shown; counted by class for a batch size of 4 only",
            f"batch 4: {run.accuracy}; batch 32: {larger.accuracy}",
            "other images; each run's report has the classes, with intervals",
        ),
        (
            "reloaded weights",
            "a new network on the CPU",
            "bit-identical predictions on all test images (a test)",
            "",
        ),
    ]


def quick(run: Run) -> list[Row]:
    """Compare the run of the quick start with the source."""
    last = run.epochs[-1]
    accuracies = " ".join(f"{100 * row['test_accuracy']:.1f}" for row in run.epochs)
    lines = [line for row in run.epochs for line in row["lines"]]
    return [
        (
            "training loss and time every 100 steps, in TensorBoard",
            "the loss of that step",
            f"{len(lines)} lines, each the mean of 100 steps; from {lines[0]['loss']:.3f} to "
            f"{lines[-1]['loss']:.3f}",
            "one step's loss is mostly noise",
        ),
        (
            "test loss and accuracy after each epoch",
            "computed, not shown; the loss is a sum of the batches' means",
            f"loss {last['test_loss']:.3f} after epoch {last['epoch']}; accuracies {accuracies}",
            "means over images; other images; Onsight shuffles the training images",
        ),
        (
            "a model after each epoch",
            "the whole module, pickled",
            f"{len(run.epochs)} model files without pickle",
            "weights, classes and preprocessing in one checksummed file",
        ),
        (
            "10 epochs",
            "not given",
            f"{run.training_seconds:.0f} s, {run.results['images_per_second']:,.0f} images/s",
            "",
        ),
    ]


def vectors(runs: list[Run]) -> list[Row]:
    """Compare the runs of one, two and three ranks with the source."""
    losses = [run.epochs[0]["train_loss"] for run in runs]
    spread = max(abs(loss / losses[0] - 1) for loss in losses)
    shares = [re.findall(r": (\d+) of", run.plan["ranks"]["reason"]) for run in runs[1:]]
    return [
        (
            "share of a batch of 30 with 1, 2 and 3 replicas",
            "30 on one GPU; 10, 10 and 10 expected on three",
            "; ".join(["all 30", *(" + ".join(each) for each in shares)]),
            "processes on a CPU, and DistributedDataParallel instead of DataParallel",
        ),
        (
            "mean loss of the epoch",
            "a forward pass only",
            ", ".join(f"{loss:.6f}" for loss in losses),
            f"the same within {spread:.0e}: the number of ranks makes no difference",
        ),
    ]


SOURCES = {
    "dogs-vs-cats": '"Pytorch 6. Training with GPU", https://zhuanlan.zhihu.com/p/463450064; '
    "a Tesla M60 (8 GB) in a cloud notebook",
    "cifar10-lenet": '"Loading data for training on CPU and GPU" (2019; a GTX 1080 Ti and a Core '
    'i7-7800X), "Using a GPU" (2020, a cloud lab) and "PyTorch for beginners, part three" (2019)',
    "cifar10-quick": "notes on what must be moved to the GPU, how, and how to check it (a "
    "notebook; no machine named)",
    "data-parallel": '"PyTorch for beginners, part three" (2019; no machine named)',
}


def section(name: str, run: Run, rows: list[Row]) -> str:
    """Write the section of a recipe in Markdown."""
    text = [f"## {name}", "", f"Source: {SOURCES[name]}.", "", f"Measured on: {run.machine}.", ""]
    text += [f"    {command(name)}", "", "| | published | measured | what differs, and why |"]
    text += ["| --- | --- | --- | --- |"]
    text += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(text) + "\n"


def command(name: str) -> str:
    """Return the command that trains with a recipe, and the data that it is for."""
    return f"onsight train --recipe {name}    # data: {read_about(name)['data']}"


def main(folder: Path) -> None:
    """Write the page from the runs in a folder."""

    def run(name: str) -> Run:
        return Run.read(folder / name)

    pets, lenets = run("dogs-vs-cats"), (run("cifar10-lenet"), run("cifar10-lenet-32"))
    several = [run(f"vectors-{ranks}") for ranks in (1, 2, 3)]
    sections = [
        section("dogs-vs-cats", pets, dogs_vs_cats(pets, run("dogs-vs-cats-again"))),
        section("cifar10-lenet", lenets[0], lenet(*lenets)),
        section("cifar10-quick", run("cifar10-quick"), quick(run("cifar10-quick"))),
        section("data-parallel", several[0], vectors(several)),
    ]
    PAGE.write_text("\n".join([HEADER, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
