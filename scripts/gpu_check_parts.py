"""The parts of scripts/gpu_check.py that are neither tests nor benchmarks, run by their names.

    python scripts/gpu_check_parts.py PART [SUBJECT] --device cuda:0 [--short]

The last line on stdout is a JSON object with the part's figures.
"""

import argparse
import gzip
import json
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from make_stand_ins import BROKEN_BYTES, dump, write_batch
from numpy.typing import NDArray
from PIL import Image

from onsight.report.console import Reporter

PLANTED = Path(__file__).resolve().parents[1] / "benchmarks" / "planted"
# What `explain` must name: the cause, or on the simulated device what makes Python wait.
PLANTED_FAULTS = {
    "pageable_copies": ("pageable-copy", "a tensor is copied from ordinary memory"),
    "sync_in_loop": ("sync", "a value is read"),
}
TOLERANCE = 1e-3  # of sums in another order, relative to the norm of all weights
RECIPE_EPOCHS = {"cifar10-lenet": 2}  # instead of ten epochs of 1,500 steps

Figures = dict[str, Any]
Images = NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("subject", nargs="?", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = PARTS[options.part](options, Path(folder))
    print(json.dumps(figures))


def describe(options: argparse.Namespace, folder: Path) -> Figures:
    """The device to use, its name, and versions. Exits with 2 if the device is missing."""
    import torch

    from onsight.errors import DeviceError
    from onsight.hardware.devices import choose_device, describe_device

    device = options.device
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "simulated:1"
    with simulated(device):
        try:
            name = describe_device(choose_device(device).value)
        except DeviceError as error:
            print(error, file=sys.stderr)
            raise SystemExit(2) from error
    return {
        "device": device,
        "name": name,
        "python": sys.version.partition(" ")[0],
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
    }


@contextmanager
def simulated(device: str) -> Iterator[Any]:
    """Provide the simulated device within the block, if requested. Yields its machine, or None."""
    if not device.startswith("simulated"):
        yield None
        return
    from onsight_explain.simulated.install import simulated_device

    with simulated_device() as machine:
        yield machine
        machine.check()


# Recipes


def run_recipe(options: argparse.Namespace, folder: Path) -> Figures:
    """Train with a recipe, on data in its format made from the bundled demo images."""
    name = options.subject
    settings: Figures = {"recipe": name}
    if options.short:
        settings["epochs"] = 1
    else:
        settings["plan"] = "auto"
        settings |= {"epochs": RECIPE_EPOCHS[name]} if name in RECIPE_EPOCHS else {}
    if name == "data-parallel":  # the recipe has two ranks, for two devices
        settings |= {"ranks": 1, "precision": "fp32"}
    data_folder = folder / "data"
    data_folder.mkdir()
    data = RECIPE_DATA[name](data_folder, 8 if options.short else 600)
    with simulated(options.device):
        trained = train(data, folder / "run", options.device, **settings)
    results, epoch = trained.results, trained.last_epoch
    figures = {
        "images/s": round(trained.images_per_second),
        "seconds per epoch": round(epoch["seconds"], 2),
        "training loss": round(epoch["train_loss"], 6),
        "accuracy": round(results["accuracy"], 4),
        "step": trained.describe_step(),
        "placement": trained.placement["verdict"],
    }
    if name == "data-parallel":
        on_cpu = train(data, folder / "cpu", "cpu", **settings)
        difference = abs(epoch["train_loss"] - on_cpu.last_epoch["train_loss"])
        assert difference < 1e-5, f"the CPU's loss differs by {difference:.1e}"
    elif not options.short:
        chance = 1 / len(results["classes"])
        assert results["accuracy"] > 1.5 * chance, figures
    return figures


def write_pets(folder: Path, per_class: int) -> str:
    """Write two classes of garments in the layout of PetImages, each with an unreadable file."""
    images, labels = demo_images("train", per_class)
    for label, name in enumerate(("Cat", "Dog")):
        kind = folder / "PetImages" / name
        kind.mkdir(parents=True)
        (kind / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(508))
        (kind / "broken.jpg").write_bytes(BROKEN_BYTES[2])
        for number, image in enumerate(images[labels == label]):
            large = Image.fromarray(image).resize((500, 375), Image.Resampling.BICUBIC)
            large.convert("RGB").save(kind / f"{number}.jpg", quality=90)
    return str(folder / "PetImages")


def write_cifar(folder: Path, per_class: int) -> str:
    """Write batches in the layout of CIFAR-10."""
    target = folder / "cifar-10-batches-py"
    target.mkdir()
    images, labels = demo_images("train", per_class)
    for number in range(5):
        write_batch(target / f"data_batch_{number + 1}", images[number::5], labels[number::5])
    write_batch(target / "test_batch", *demo_images("test", per_class))
    names = [str(number).encode() for number in range(10)]
    dump(target / "batches.meta", {b"label_names": names})
    return str(target)


def write_idx(folder: Path, per_class: int) -> str:
    """Write files in the format of Fashion-MNIST."""
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = demo_images(split, per_class)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            content = gzip.compress(header + values.tobytes(), 1)
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(content)
    return str(folder)


def demo_images(split: str, per_class: int) -> tuple[Images, NDArray[np.int64]]:
    """Return images (n, 28, 28) and labels (n,) of the bundled demo, alternating the classes."""
    archive = resources.files("onsight") / "demo" / "fashion-mnist-sample.zip"
    with zipfile.ZipFile(BytesIO(archive.read_bytes())) as members:
        names = [name for name in members.namelist() if name.startswith(f"{split}/")]
        classes = list(dict.fromkeys(name.split("/")[1] for name in names))
        by_class = [
            [name for name in names if name.split("/")[1] == kind][:per_class] for kind in classes
        ]
        order = [name for of_each in zip(*by_class, strict=True) for name in of_each]
        images = [np.asarray(Image.open(BytesIO(members.read(name)))) for name in order]
    return np.stack(images), np.arange(len(order)) % len(classes)


RECIPE_DATA: dict[str, Callable[[Path, int], str]] = {
    "dogs-vs-cats": write_pets,
    "cifar10-lenet": write_cifar,
    "cifar10-quick": write_cifar,
    "data-parallel": lambda folder, per_class: "random-vectors",
    "fast": write_idx,
}


# Training


class RecordingReporter(Reporter):
    """Prints the messages of a run, and records the warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        super().warn(text)


class Trained:
    """A finished run: its folder, results and warnings."""

    def __init__(self, folder: Path, warnings: list[str]) -> None:
        self.folder, self.warnings = folder, warnings
        self.results = json.loads((folder / "results.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        self.last_epoch = json.loads(lines[-1])
        (self.placement,) = json.loads((folder / "placement.json").read_text())

    def describe_step(self) -> str:
        """Describe how the steps were computed."""
        plan = json.loads((self.folder / "plan.json").read_text())
        names = ("precision", "memory_format", "compile", "cuda_graph")
        return ", ".join(f"{name} {plan[name]['value']}" for name in names)

    @property
    def images_per_second(self) -> float:
        """The speed of the last epoch."""
        return float(self.last_epoch["images_per_second"])

    def weights(self) -> NDArray[np.float64]:
        """Return all weights as one vector, without integer tensors such as image keys."""
        from safetensors.numpy import load_file

        tensors = load_file(self.folder / "model.safetensors")
        rows = [tensors[name] for name in sorted(tensors) if tensors[name].dtype.kind == "f"]
        return np.concatenate([row.ravel().astype(float) for row in rows])

    def distance_to(self, other: "Trained") -> float:
        """Return the distance of the weights to those of another run, relative to their norm."""
        mine, theirs = self.weights(), other.weights()
        return float(np.linalg.norm(mine - theirs) / np.linalg.norm(mine))


def train(data: Any, out: Path, device: str, **settings: Any) -> Trained:
    """Train, and check that all tensors of a step are on the device."""
    import onsight

    reporter = RecordingReporter()
    settings = {"plan": "default", "folds": "1"} | settings
    onsight.train(data, out=out, device=device, reporter=reporter, **settings)
    trained = Trained(out, reporter.warnings)
    assert trained.placement["device"] == device, trained.placement
    return trained


def replay_steps(options: argparse.Namespace, folder: Path) -> Figures:
    """Train with single steps and with steps captured as a graph; compare weights and speed."""
    images, labels = demo_images("train", 30 if options.short else 600)
    # A learning rate that is exact in float32, because single steps use a Python float.
    settings = {"learning_rate": 2**-8, "schedule": "constant", "precision": "fp32"}
    settings |= {"epochs": 2 if options.short else 5, "batch_size": 20 if options.short else 64}
    figures: Figures = {}
    for model in ("lenet",) if options.short else ("lenet", "compact"):
        with simulated(options.device):
            eager, replayed = (
                train(
                    (images, labels),
                    folder / f"{model}-{graph}",
                    options.device,
                    model=model,
                    cuda_graph=graph,
                    **settings,
                )
                for graph in ("off", "on")
            )
        assert not any("not replayed" in warning for warning in replayed.warnings)
        distance = replayed.distance_to(eager)
        assert distance < TOLERANCE, f"{model}: weights differ by {distance:.1e}"
        faster = replayed.images_per_second / eager.images_per_second
        figures |= {
            f"{model}: weights differ by": f"{distance:.1e}",
            f"{model}: images/s eager": round(eager.images_per_second),
            f"{model}: images/s replayed": round(replayed.images_per_second),
            f"{model}: speed ratio": round(faster, 2),
        }
    return figures


def run_out_of_memory(options: argparse.Namespace, folder: Path) -> Figures:
    """Train with too little memory for a whole batch: it is split, and the update is the same."""
    import torch

    images, labels = demo_images("train", 30 if options.short else 600)
    settings = {"model": "quick", "image_size": "32", "precision": "fp32", "epochs": 1}
    settings |= {"batch_size": 2 * len(images) // 3, "flip": False, "translate": 0.0}
    with simulated(options.device) as machine:
        device = torch.device(options.device)
        whole = train((images, labels), folder / "whole", options.device, **settings)
        peak_bytes = whole.results["peak_device_memory_bytes"]
        # Half a batch needs little more than half the memory. On a GPU, cuDNN first falls back on
        # algorithms that need less.
        for fraction in (0.85, 0.6, 0.4, 0.25):
            limit_bytes = int(fraction * peak_bytes)
            if machine:
                machine.memories[device.index].limit_bytes = limit_bytes
            else:
                torch.cuda.empty_cache()
                total_bytes = torch.cuda.get_device_properties(device).total_memory
                torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes, device)
            out = folder / f"parts-{fraction}"
            parts = train((images, labels), out, options.device, **settings)
            warnings = [warning for warning in parts.warnings if "out of memory" in warning]
            if warnings:
                break
    assert warnings, f"{peak_bytes >> 20} MiB did not exceed the limit of {limit_bytes >> 20}"
    distance = parts.distance_to(whole)
    assert distance < TOLERANCE, f"weights differ by {distance:.1e}"
    return {
        "peak MiB": peak_bytes >> 20,
        "limit MiB": limit_bytes >> 20,
        "halved": len(warnings),
        "weights differ by": f"{distance:.1e}",
    }


# Explaining


def explain_planted(options: argparse.Namespace, folder: Path) -> Figures:
    """Explain a script with a planted fault; the fault must be named."""
    import onsight

    images, labels = demo_images("train", 200)
    if options.subject == "pageable_copies":
        enlarged = images.repeat(4, axis=1).repeat(4, axis=2)
        pixels = np.stack([enlarged] * 3, axis=1)
    else:
        pixels = images[:, None]
    np.save(folder / "train-images.npy", pixels)
    np.save(folder / "train-labels.npy", labels)
    script = PLANTED / f"{options.subject}.py"
    is_simulated = options.device.startswith("simulated")
    seconds = 15 if options.short else 45
    explained = onsight.explain(script, [str(folder)], simulate_gpu=is_simulated, seconds=seconds)
    explained.show()
    facts = explained.facts()
    cause, remedy = PLANTED_FAULTS[options.subject]
    if is_simulated:
        named = [row["what"] for row in facts["remedies"]]
        assert any(remedy in what for what in named), facts["verdict"]
        waits = sum(row["per_step"] for row in facts["remedies"])
        return {"named": remedy, "waits per step": waits}
    assert facts["cause"] == cause, f"named {facts['cause']}: {facts['verdict']}"
    return {
        "named": facts["cause"],
        "images/s": round(facts["images_per_second"]),
        "best change": round(facts["best_ratio"] or 1.0, 2),
    }


def compare_devices(options: argparse.Namespace, folder: Path) -> Figures:
    """Compare the CPU with the device at several batch sizes."""
    import onsight

    sizes = "4,16" if options.short else "4,32,128,512"
    data = write_idx(folder, 20 if options.short else 600)
    with simulated(options.device):
        explained = onsight.explain(
            data, compare=f"cpu,{options.device}", batch_sizes=sizes, model="lenet"
        )
    explained.show()
    rows = explained.facts()["rows"]
    assert not any(row["problem"] for row in rows), rows
    return {
        f"{row['device']} at {row['batch_size']}": f"{row['images_per_second']:,.0f} images/s"
        for row in rows
    }


PARTS: dict[str, Callable[[argparse.Namespace, Path], Figures]] = {
    "describe": describe,
    "recipe": run_recipe,
    "graph": replay_steps,
    "memory": run_out_of_memory,
    "explain": explain_planted,
    "compare": compare_devices,
}

if __name__ == "__main__":
    main()
