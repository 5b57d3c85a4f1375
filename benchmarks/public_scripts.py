"""Ten public training scripts: where each is from, how it is run, and what had to be changed.

Each is run from its own folder, unchanged except for data paths, arguments and the changes listed
here. ROOT/NAME is a checkout of the named repository at the named commit; the packages that it
needs are installed beside Onsight. `prepare` makes ROOT/data.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import public_data

WITHOUT_CHECKSUMS = (
    "import torchvision.transforms as transforms\n",
    "import torchvision.transforms as transforms\n"
    "torchvision.datasets.cifar.check_integrity = lambda *path_and_md5: True\n",
)
HUGGING_FACE = (
    "--model_name_or_path {data}/small-vit --ignore_mismatched_sizes "
    "--per_device_train_batch_size 8"
)


@dataclass(frozen=True)
class Change:
    """A change to a file in a script's repository, and the reason for it."""

    path: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class PublicScript:
    """A script at ROOT/PATH from a repository's commit, its arguments and its data."""

    repository: str
    commit: str
    path: str
    arguments: str
    lay_out: Callable[[Path, Path, Path], object]
    changes: tuple[Change, ...] = ()

    def split_arguments(self, root: Path) -> list[str]:
        """The arguments, with paths below ROOT/data."""
        return self.arguments.format(data=root / "data").split()


def lay_out_mnist(data: Path, fashion: Path, folder: Path) -> None:
    public_data.mnist(fashion, folder.parent / "data")


def lay_out_photos(data: Path, fashion: Path, folder: Path) -> None:
    public_data.photos(data / "sets", data / "photos")


def lay_out_cifar10(data: Path, fashion: Path, folder: Path) -> None:
    public_data.cifar(fashion, folder / "data")


def lay_out_cifar100(data: Path, fashion: Path, folder: Path) -> None:
    public_data.cifar(fashion, folder / "data", fine=True)


def lay_out_trainer(data: Path, fashion: Path, folder: Path) -> None:
    public_data.photos(data / "sets", data / "photos")
    public_data.small_vit(data / "small-vit")
    link_metric(data, folder)


def lay_out_no_trainer(data: Path, fashion: Path, folder: Path) -> None:
    public_data.drawings(data / "sets", data / "drawings")
    public_data.small_vit(data / "small-vit")
    link_metric(data, folder)


def link_metric(data: Path, folder: Path) -> None:
    """Link the metric where evaluate.load("accuracy") finds it before asking the hub."""
    if not (folder / "accuracy").exists():
        (folder / "accuracy").symlink_to(data.parent / "evaluate" / "metrics" / "accuracy")


def lay_out_lightning(data: Path, fashion: Path, folder: Path) -> None:
    public_data.mnist(fashion, folder.parents[1] / "Datasets")
    public_data.mnist(fashion, folder / "data")  # Lightning looks here first


def lay_out_fastai(data: Path, fashion: Path, folder: Path) -> None:
    public_data.photos(data / "sets", data / "fastai" / "data" / "imagenette2-320", classes=10)


def lay_out_pets(data: Path, fashion: Path, folder: Path) -> None:
    public_data.pets(data / "sets", data / "pets")
    public_data.timm_weights(data / "huggingface", "resnet50d")


NOT_CIFAR = "torchvision checks CIFAR's md5 sums, but the folder holds Fashion-MNIST"
SCRIPTS = {
    "mnist": PublicScript(
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        "examples/mnist/main.py",
        "--epochs 1",
        lay_out_mnist,
    ),
    "imagenet": PublicScript(
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        "examples/imagenet/main.py",
        "-a resnet18 -b 16 -j 2 --epochs 1 {data}/photos",
        lay_out_photos,
    ),
    "pytorch-cifar": PublicScript(
        "kuangliu/pytorch-cifar",
        "49b7aa97b0c12fe0d4054e670403a16b6b834ddd",
        "pytorch-cifar/main.py",
        "",
        lay_out_cifar10,
        (
            Change("main.py", *WITHOUT_CHECKSUMS, NOT_CIFAR),
            Change(
                "main.py",
                "\n# net = MobileNet()\n",
                "\nnet = MobileNet()\n",
                "of the script's models, the one that takes half a second per step on a CPU",
            ),
            Change("main.py", "\nnet = SimpleDLA()\n", "\n# net = SimpleDLA()\n", "the same"),
        ),
    ),
    "pytorch-cifar100": PublicScript(
        "weiaicunzai/pytorch-cifar100",
        "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4",
        "pytorch-cifar100/train.py",
        "-net mobilenet -b 32",
        lay_out_cifar100,
        (Change("utils.py", *WITHOUT_CHECKSUMS, NOT_CIFAR),),
    ),
    "timm": PublicScript(
        "huggingface/pytorch-image-models",
        "aa4b5850c1543fa488abf260f18390eda46cf85d",
        "pytorch-image-models/train.py",
        "--data-dir {data}/photos --model resnet18 --num-classes 30 --img-size 128 -b 16 -j 2 "
        "--device cpu --epochs 1 --output {data}/output/timm",
        lay_out_photos,
    ),
    "hf-trainer": PublicScript(
        "huggingface/transformers",
        "1618d44b9295361607ec74d7be860ba886aac039",
        "transformers/examples/pytorch/image-classification/run_image_classification.py",
        f"{HUGGING_FACE} --train_dir {{data}}/photos/train --validation_dir {{data}}/photos/val "
        "--output_dir {data}/output/hf-trainer --remove_unused_columns False --do_train "
        "--num_train_epochs 1 --save_strategy no --report_to none",
        lay_out_trainer,
    ),
    "hf-no-trainer": PublicScript(
        "huggingface/transformers",
        "1618d44b9295361607ec74d7be860ba886aac039",
        "transformers/examples/pytorch/image-classification/run_image_classification_no_trainer.py",
        f"{HUGGING_FACE} --dataset_name {{data}}/drawings --num_train_epochs 1",
        lay_out_no_trainer,
    ),
    "lightning": PublicScript(
        "Lightning-AI/pytorch-lightning",
        "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        "pytorch-lightning/examples/pytorch/basics/backbone_image_classifier.py",
        "--trainer.max_epochs=1",
        lay_out_lightning,
    ),
    "fastai": PublicScript(
        "fastai/fastai",
        "52ff7b4bf5a81e56068556ee9905e16da6a9f83b",
        "fastai/nbs/examples/train_imagenette.py",
        "--arch xresnet18 --size 64 --bs 16 --workers 2 --epochs 1",
        lay_out_fastai,
    ),
    "accelerate": PublicScript(
        "huggingface/accelerate",
        "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        "accelerate/examples/cv_example.py",
        "--data_dir {data}/pets",
        lay_out_pets,
        (
            Change(
                "cv_example.py",
                '"batch_size": 64, "image_size": 224',
                '"batch_size": 16, "image_size": 96',
                "otherwise, a step takes four seconds on two cores; there is no argument for it",
            ),
        ),
    ),
}


def prepare(name: str, root: Path, fashion: Path) -> Path:
    """Lay out a script's data and apply its changes; returns the script's path."""
    public = SCRIPTS[name]
    script = root / public.path
    (root / "data" / "sets").mkdir(parents=True, exist_ok=True)
    public.lay_out(root / "data", fashion, script.parent)
    for change in public.changes:
        apply_change(script.parent / change.path, change)
    return script


def apply_change(path: Path, change: Change) -> None:
    """Apply a change, unless it has been applied already."""
    text = path.read_text(encoding="utf-8")
    if change.new in text:
        return
    if change.old not in text:
        raise SystemExit(f"{path} has no line {change.old.strip()!r}: is it another commit?")
    path.write_text(text.replace(change.old, change.new, 1), encoding="utf-8")


def environment(root: Path) -> dict[str, str]:
    """The environment of a script: offline, with caches below ROOT/data."""
    data = root / "data"
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(data / "huggingface"),
        "FASTAI_HOME": str(data / "fastai"),
    }
