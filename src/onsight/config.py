"""The config of a run: every flag of `onsight train` is a field here, with help text and unit.

Precedence: flags, then --config FILE, then --recipe NAME, then the defaults below.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from cyclopts import Group, Parameter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from onsight.errors import ConfigError, did_you_mean
from onsight.files import write_atomically

_DATA = Parameter(group=Group("Data", sort_key=1))
_MODEL = Parameter(group=Group("Model", sort_key=2))
_TRAINING = Parameter(group=Group("Training", sort_key=3))
_AUGMENTATION = Parameter(group=Group("Augmentation (training images only)", sort_key=4))
_MACHINE = Parameter(group=Group("Machine", sort_key=5))
_TUTORIALS = Parameter(group=Group("Only to reproduce tutorials", sort_key=6))

# Marks a field that changes how long a training step takes: plans are kept by these fields.
SHAPES_STEP = object()

Tta = Literal["one", "flip", "flip-shift"]


class Retired(NamedTuple):
    """A field that older versions had: its default there, and what to do instead."""

    default: object
    instead: str


# Every saved config names all fields of its version, so a default is dropped from it in silence.
RETIRED_FIELDS = {
    "decode_on": Retired("cpu", "JPEGs are always decoded on the CPU, so leave it out"),
}


class Switch(BaseModel):
    """What a run computes with from an epoch and a step on, both counted from 0.

    fold: whose training it is; 0: the training of the model that is kept.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epoch: int
    step: int
    precision: str
    threads: int
    accumulate: int
    fold: int = 0


class Config(BaseModel):
    """All settings of a run, saved as config.toml in the run folder."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True
    )

    image_size: Annotated[str, _DATA] = Field(
        "auto",
        pattern=r"^(auto|[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?)$",
        description="Image size in pixels, as 64 or HEIGHTxWIDTH. auto: the images' own size "
        "if it is small and the same for all, otherwise the size the model expects.",
    )
    channels: Annotated[Literal["auto", "1", "3"], BeforeValidator(str), _DATA] = Field(
        "auto", description="1 for grey, 3 for colour. auto: 1 if every image is stored as grey."
    )
    fit: Annotated[Literal["stretch", "crop", "pad"], _DATA] = Field(
        "stretch",
        description="How an image is brought to that size: stretch it, crop its centre, or pad "
        "it with the background colour.",
    )
    background: Annotated[str, _DATA] = Field(
        "#ffffff",
        pattern=r"^#[0-9a-fA-F]{6}$",
        description="Colour behind transparent images and around padded ones.",
    )
    pixel_limit_megapixels: Annotated[float, _DATA] = Field(
        64.0,
        gt=0,
        le=178,
        description="Refuse larger images before any memory is allocated for them.",
    )
    validation_fraction: Annotated[float, _DATA] = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Share held out for validation if the data has no validation split.",
    )
    test_fraction: Annotated[float, _DATA] = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Share held out for the final test if the data has no test split.",
    )
    group_by: Annotated[str, _DATA] = Field(
        "",
        description="A regular expression on paths, such as 'patient_[0-9]+': images in which it "
        "finds the same text stay together on one side of every split. A manifest's column "
        "`group` does the same.",
    )
    split_near_duplicates: Annotated[Literal["auto", "together", "apart"], _DATA] = Field(
        "auto",
        description="Keep images that are resized, re-encoded, slightly cropped or mirrored "
        "copies of each other on one side of every split. auto: together if `onsight check` has "
        "found which these are.",
    )
    folds: Annotated[str, _DATA] = Field(
        "auto",
        pattern=r"^(auto|[1-9][0-9]?)$",
        description="Judge every image once, by one of this many models that have not seen it; "
        "the model that is kept is trained on all images. 1: hold out a test part instead. auto: "
        "5 if a test part would have fewer than 200 images and there is time.",
    )
    train_images: Annotated[int, _DATA] = Field(
        0,
        ge=0,
        description="Use only so many training images, drawn at random; 0: all of them, or under "
        "a budget as many as there is time to decode.",
    )
    data_format: Annotated[
        Literal[
            "auto",
            "folders",
            "manifest",
            "idx",
            "cifar",
            "archive",
            "huggingface",
            "webdataset",
            "labelstudio",
            "cvat",
            "roboflow",
            "torchvision",
        ],
        _DATA,
    ] = Field("auto", description="The format of DATA. auto: detect it.")
    label: Annotated[str, _DATA] = Field(
        "",
        description="The column that holds the labels, for a manifest with several: species.",
    )
    label_from: Annotated[str, _DATA] = Field(
        "",
        description="A regular expression that finds each image's label in its path, for folders "
        "without class folders: the first parenthesis, such as '([a-z]+)_[0-9]+' for cat_001.jpg.",
    )
    crop_boxes: Annotated[bool, _DATA] = Field(
        False,
        description="What is inside each box of COCO, Pascal VOC or CVAT annotations is an image.",
    )
    strict: Annotated[bool, _DATA] = Field(
        False, description="Stop at the first image that cannot be used, instead of listing it."
    )
    cache_folder: Annotated[str, _DATA] = Field(
        "",
        description="Where decoded images are kept for the next run; none: keep nothing. Empty: "
        "$ONSIGHT_CACHE or ~/.cache/onsight.",
    )

    shard_cache_gigabytes: Annotated[float, _DATA] = Field(
        0.0,
        ge=0,
        description="Most gigabytes of the cache folder for copies of remote shards; what was used "
        "longest ago makes room. 0: half of what the disk has free.",
    )

    model: Annotated[str, _MODEL, SHAPES_STEP] = Field(
        "auto",
        description="A name from `onsight models` (timm's included), or package.module:callable. "
        "auto: what short trials on some of the images promise most of, in the time there is.",
    )
    pretrained: Annotated[bool, _MODEL, SHAPES_STEP] = Field(
        False, description="Start a timm model from its published weights (may download them)."
    )
    weights: Annotated[str, _MODEL] = Field(
        "",
        description="Start from the weights in this file (.safetensors, .pth, .pt or .bin) or run "
        "folder; a last layer for other classes starts new.",
    )
    freeze: Annotated[bool, _MODEL, SHAPES_STEP] = Field(
        False, description="Train only the last layer and leave the rest as it is."
    )
    normalize: Annotated[Literal["auto", "dataset", "half", "none"], _MODEL] = Field(
        "auto",
        description="How inputs are scaled: dataset = to mean 0 and standard deviation 1 over the "
        "training images, half = to [-1, 1], none = to [0, 1]. auto: as the weights that "
        "the network starts from expect, otherwise dataset.",
    )

    epochs: Annotated[int, _TRAINING] = Field(
        10, ge=1, le=1_000_000, description="Passes over the training images."
    )
    budget: Annotated[str, _TRAINING] = Field(
        "",
        pattern=r"^$|^[0-9]+(\.[0-9]+)?[smh]$",
        description="Time for the whole run, such as 90s, 5m or 2h, instead of epochs. Image "
        "size and learning rate schedule are chosen to fit; evaluation and report are included.",
    )
    batch_size: Annotated[int, _TRAINING, SHAPES_STEP] = Field(
        128,
        ge=1,
        le=1_000_000,
        description="Images per step, over all devices together. Unless set, fewer if time is "
        "short, or to fine-tune with few images.",
    )
    optimizer: Annotated[str, _TRAINING, SHAPES_STEP] = Field(
        "adamw",
        description="sgd, nesterov (sgd with Nesterov momentum), adam, adamw, or one of timm's.",
    )
    learning_rate: Annotated[float, _TRAINING] = Field(
        0.0,
        ge=0,
        description="Highest learning rate of the schedule; 0: chosen by optimizer and model.",
    )
    momentum: Annotated[float, _TRAINING] = Field(
        0.9,
        ge=0,
        lt=1,
        description="Momentum of sgd, nesterov and those of timm's optimizers that have one.",
    )
    weight_decay: Annotated[float, _TRAINING] = Field(
        0.05, ge=0, description="Weight decay; not applied to biases and normalization layers."
    )
    layer_decay: Annotated[float, _TRAINING] = Field(
        0.0,
        ge=0,
        le=1,
        description="Learning rate of each layer as a share of the next one's, so that layers near "
        "the input change less; 0: 0.9 from published weights, otherwise 1.",
    )
    norm_statistics: Annotated[Literal["auto", "batch", "kept"], _TRAINING, SHAPES_STEP] = Field(
        "auto",
        description="What batch norm normalizes with while training: batch = each batch's own "
        "statistics, kept = those it started with. auto: kept from published weights, otherwise "
        "batch.",
    )
    schedule: Annotated[Literal["one-cycle", "cosine", "linear", "constant"], _TRAINING] = Field(
        "one-cycle",
        description="How the learning rate changes over the run; linear: straight down to zero.",
    )
    warmup_epochs: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, description="Epochs of linear warm-up before cosine, linear or constant."
    )
    loss: Annotated[Literal["cross-entropy", "mse"], _TUTORIALS, SHAPES_STEP] = Field(
        "cross-entropy",
        description="mse: mean squared error between the probabilities and the one-hot label.",
    )
    label_smoothing: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, lt=1, description="Share of each label that is spread over all classes."
    )
    class_weights: Annotated[Literal["auto", "none", "root", "balanced"], _TRAINING] = Field(
        "auto",
        description="Weight of each class in the loss, so that rare ones count more. balanced: by "
        "1 / n_class, so that all count alike; root: by its square root. auto: root if the "
        "largest class has over 5 times the images of the smallest, otherwise none.",
    )
    ema: Annotated[float, _TRAINING, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay per step of a moving average of the weights; 0: off. Unless set, on "
        "while fine-tuning, by the number of steps.",
    )
    recalibrate_norm: Annotated[bool, _TRAINING] = Field(
        False,
        description="At the end, measure batch norm's statistics again on 4,096 training images "
        "without augmentation.",
    )
    clip_norm: Annotated[float, _TRAINING, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        description="Largest gradient norm; larger gradients are scaled down to it. 0: off.",
    )
    accumulate: Annotated[int, _TRAINING, SHAPES_STEP] = Field(
        1,
        ge=1,
        description="Number of parts in which each batch is computed, to save memory; the update "
        "is the same.",
    )
    patience_epochs: Annotated[int, _TRAINING] = Field(
        0,
        ge=0,
        description="Stop after this many epochs without a better validation result; 0: off.",
    )
    log_every_steps: Annotated[int, _TRAINING] = Field(
        0,
        ge=0,
        description="Steps between lines with the mean loss; 0: only one line per epoch.",
    )
    log: Annotated[str, _TRAINING] = Field(
        "tensorboard",
        pattern=r"^(none|(tensorboard|mlflow|wandb)(,(tensorboard|mlflow|wandb))*)$",
        description="Where to follow the run: tensorboard, mlflow, wandb, several as mlflow,wandb, "
        "or none. Without a server or key of yours, all of them write into the run folder.",
    )
    checkpoint_seconds: Annotated[float, _TRAINING] = Field(
        600.0,
        ge=0,
        description="Most seconds between two checkpoints, which a killed run loses at most; 0: "
        "after every step. There is one after each epoch too.",
    )
    checkpoint_steps: Annotated[int, _TRAINING] = Field(
        0, ge=0, description="Most steps between two checkpoints; 0: only the seconds count."
    )
    checkpoints: Annotated[str, _TRAINING] = Field(
        "",
        description="Where checkpoints are copied to besides the run folder, for a machine that "
        "is lost with its disk: a folder, or a URL such as s3://bucket/run (onsight[remote]).",
    )
    keep_epochs: Annotated[bool, _TUTORIALS] = Field(
        False, description="Keep a model file of every epoch, as checkpoints/epoch-NN.safetensors."
    )
    test_each_epoch: Annotated[bool, _TUTORIALS] = Field(
        False,
        description="Also report test accuracy after each epoch; it is never used for selection.",
    )
    tta: Annotated[Tta, _TRAINING] = Field(
        "one",
        description="Test-time augmentation: also report the accuracy of the mean over several "
        "views of each image. flip: the image and its mirror image; flip-shift: both, also "
        "shifted by 1 pixel.",
    )
    seed: Annotated[int, _TRAINING] = Field(
        0, ge=0, lt=2**63, description="Seed of everything random."
    )

    flip: Annotated[bool, _AUGMENTATION, SHAPES_STEP] = Field(
        True,
        description="Mirror half of the images left to right. Turn off for digits and text.",
    )
    translate: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.05,
        ge=0,
        le=0.5,
        description="Largest shift, as a share of the side; edges are reflected.",
    )
    crop_area: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        1.0,
        gt=0,
        le=1,
        description="Smallest area of a random-resized crop, as a share of the image; 1: off. "
        "Unless set, 0.8 while fine-tuning.",
    )
    rotate_degrees: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=180, description="Largest rotation in either direction, in degrees."
    )
    jitter: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        le=1,
        description="Strength of random changes in brightness, contrast and saturation.",
    )
    cutout: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        le=1,
        description="Side of a blanked-out square, as a share of the image's side.",
    )
    mixup: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=1, description="Alpha of mixup; 0: off."
    )
    cutmix: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        le=1,
        description="Alpha of cutmix; 0: off. With mixup, each is applied to half of the images.",
    )

    device: Annotated[str, _MACHINE] = Field(
        "auto",
        description="auto, cpu, cuda, cuda:1, xpu or mps; several as all or cuda:0,cuda:2.",
    )
    ranks: Annotated[int, _MACHINE] = Field(
        0,
        ge=0,
        le=4096,
        description="Processes that train together and share each batch; 0: one per device.",
    )
    restarts: Annotated[int, _MACHINE] = Field(
        3,
        ge=0,
        le=1000,
        description="How often a run of several ranks that has lost one is started again from its "
        "last checkpoint.",
    )
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], _MACHINE, SHAPES_STEP] = Field(
        "auto",
        description="Number format of the computation. auto: bf16 on GPUs that support it.",
    )
    memory_format: Annotated[
        Literal["auto", "channels_last", "contiguous"], _MACHINE, SHAPES_STEP
    ] = Field(
        "auto",
        description="Order of an image's values in memory. auto: channels_last if the network "
        "supports it, which is nearly always faster.",
    )
    residency: Annotated[
        Literal["auto", "device", "memory", "map", "stream"], _MACHINE, SHAPES_STEP
    ] = Field(
        "auto",
        description="Where decoded images are kept: device = in the accelerator's own memory, "
        "memory = in RAM, map = in the cache file, stream = nowhere, so that each batch is "
        "decoded again. auto: the first of these that has room.",
    )
    plan: Annotated[Literal["auto", "fresh", "default"], _MACHINE] = Field(
        "auto",
        description="How the settings left open here are chosen. auto: by timing the run's own "
        "training step for a few seconds, once per machine and network; fresh: by timing it "
        "again; default: without timing.",
    )
    kernels: Annotated[Literal["repeatable", "fastest"], _MACHINE, SHAPES_STEP] = Field(
        "repeatable",
        description="repeatable: the same run gives the same bits again. fastest: on NVIDIA's "
        "and AMD's GPUs, let cuDNN time its kernels for each shape and take the fastest, whose "
        "last bits differ from run to run.",
    )
    compile: Annotated[Literal["auto", "on", "off"], _MACHINE, SHAPES_STEP] = Field(
        "auto",
        description="Use torch.compile. auto: in long runs, if it was measured to pay off.",
    )
    cuda_graph: Annotated[Literal["auto", "on", "off"], _MACHINE, SHAPES_STEP] = Field(
        "auto",
        description="Record whole training steps once as a CUDA graph and replay them, which "
        "spares the host nearly all of its work. auto: if it was measured to pay off.",
    )
    threads: Annotated[int, _MACHINE, SHAPES_STEP] = Field(
        0,
        ge=0,
        le=1024,
        description="Threads for compute and decoding in each rank; 0: every core available to it.",
    )

    switches: Annotated[tuple[Switch, ...], Parameter(show=False, parse=False)] = Field(
        (),
        description="Written by a run that changed how it computes while it trained, so that it "
        "can be repeated to the bit.",
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) in pixels, or None for auto."""
        if self.image_size == "auto":
            return None
        height, _, width = self.image_size.partition("x")
        return int(height), int(width or height)

    @property
    def starts_from_weights(self) -> bool:
        """Whether the network starts from published or given weights, not from random ones."""
        return self.pretrained or bool(self.weights)

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """The background as (red, green, blue), 0 to 255."""
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue

    @property
    def loggers(self) -> list[str]:
        """The programs to log to, each once."""
        return [] if self.log == "none" else [*dict.fromkeys(self.log.split(","))]

    @property
    def pixel_limit(self) -> int:
        """The largest image accepted, in pixels."""
        return int(self.pixel_limit_megapixels * 1e6)


def step_fields() -> list[str]:
    """The fields that change how long a training step takes."""
    return [name for name, field in Config.model_fields.items() if SHAPES_STEP in field.metadata]


def make_config(*layers: dict[str, Any]) -> Config:
    """A config from layers of fields; later layers win. Raises ConfigError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from error


def explain_invalid(error: ValidationError) -> str:
    """A pydantic error as one plain line per field."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(explain_unknown(field))
            continue
        flag = "--" + field.replace("_", "-")
        sentence = Config.model_fields[field].description if field in Config.model_fields else ""
        lines.append(f"{flag} {problem['input']}: {problem['msg'].lower()}. ({sentence})")
    return "\n".join(lines)


def explain_unknown(name: str) -> str:
    """Why a config cannot have a field of this name, and what to write instead."""
    if name in RETIRED_FIELDS:
        return f"'{name}' was removed: {RETIRED_FIELDS[name].instead}."
    return f"unknown field '{name}'.{did_you_mean(name, Config.model_fields)}"


def drop_retired(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without retired ones that have their old default."""
    return {
        name: value
        for name, value in fields.items()
        if name not in RETIRED_FIELDS or value != RETIRED_FIELDS[name].default
    }


def read_config_file(path: Path) -> dict[str, Any]:
    """The fields of a TOML file, also of one saved by an older version. Raises ConfigError."""
    try:
        if path.exists() and not path.is_file():  # a FIFO would wait for ever
            raise ConfigError(f"cannot read config {path}: it is no regular file")
        return drop_retired(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def config_layers(
    recipe: str | None, config_file: str | Path | None, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """The fields of a recipe, of a file and as given; later ones win. Raises ConfigError."""
    return [
        read_recipe(recipe) if recipe else {},
        read_config_file(Path(config_file)) if config_file else {},
        fields,
    ]


def without_foreign_code(config: Config, given: dict[str, Any]) -> Config:
    """The config, unless a file in it names code that the user did not: files run nothing.

    given: the fields that the user named. Raises ConfigError.
    """
    if ":" in config.model and "model" not in given:
        raise ConfigError(
            f"the config names code, model = '{config.model}', and nothing runs because a file "
            f"says so; if you trust that code, add --model {config.model}"
        )
    return config


def save_config(config: Config, path: Path) -> None:
    """Write a config where `--config` can read it again."""
    write_atomically(path, tomli_w.dumps(config.model_dump()).encode())


def recipe_names() -> list[str]:
    """Names of the ready-made configs in the package."""
    folder = resources.files("onsight") / "recipes"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The fields of a recipe. Raises ConfigError, which lists the recipes there are."""
    fields = _load_recipe(name)
    del fields["about"]
    return fields


def read_about(name: str) -> dict[str, str]:
    """What a recipe says about itself: data, reproduces, published, measured, stand_in.

    data is the DATA it was made for; published are the figures of its source, measured those of
    this project; stand_in says what else it runs on. Raises ConfigError like `read_recipe`.
    """
    about: dict[str, str] = _load_recipe(name)["about"]
    return about


def _load_recipe(name: str) -> dict[str, Any]:
    names = recipe_names()
    if name not in names:
        raise ConfigError(
            f"no recipe '{name}'.{did_you_mean(name, names)} Available: {', '.join(names)}"
        )
    text = (resources.files("onsight") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
