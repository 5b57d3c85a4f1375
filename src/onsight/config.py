"""The config of a run: every flag of `onsight train` is a field here, with its sentence and unit.

Precedence: flags, then --config FILE, then --recipe NAME, then the defaults below.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Group, Parameter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from onsight.errors import ConfigError, did_you_mean
from onsight.files import write_atomically

_DATA = Parameter(group=Group("Data", sort_key=1))
_MODEL = Parameter(group=Group("Model", sort_key=2))
_TRAINING = Parameter(group=Group("Training", sort_key=3))
_AUGMENTATION = Parameter(group=Group("Augmentation (training pictures only)", sort_key=4))
_MACHINE = Parameter(group=Group("Machine", sort_key=5))
_TUTORIALS = Parameter(group=Group("Only to reproduce tutorials", sort_key=6))

# Marks a field that changes how long a training step takes: plans are kept by these fields.
SHAPES_STEP = object()

Tta = Literal["one", "flip", "flip-shift"]


class Switch(BaseModel):
    """What a run computes with from an epoch and a step on, both counted from 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epoch: int
    step: int
    precision: str
    threads: int
    accumulate: int


class Config(BaseModel):
    """What a run does; saved whole as config.toml in the run folder."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True
    )

    image_size: Annotated[str, _DATA] = Field(
        "auto",
        pattern=r"^(auto|[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?)$",
        description="Picture size in pixels, as 64 or HEIGHTxWIDTH. auto: the data's own size "
        "when all are alike and small, else what the model wants.",
    )
    channels: Annotated[Literal["auto", "1", "3"], BeforeValidator(str), _DATA] = Field(
        "auto", description="1 grey, 3 colour. auto: 1 when every picture is stored grey."
    )
    fit: Annotated[Literal["stretch", "crop", "pad"], _DATA] = Field(
        "stretch",
        description="How a picture meets the size: stretch all of it, crop its centre, "
        "or pad it with the background.",
    )
    background: Annotated[str, _DATA] = Field(
        "#ffffff",
        pattern=r"^#[0-9a-fA-F]{6}$",
        description="Colour laid under transparent pictures and around padded ones.",
    )
    pixel_limit_megapixels: Annotated[float, _DATA] = Field(
        64.0,
        gt=0,
        le=178,
        description="Pictures of more megapixels are refused before any memory is taken.",
    )
    validation_fraction: Annotated[float, _DATA] = Field(
        0.1, ge=0, lt=0.5, description="Share held out for choices when the data has no such split."
    )
    test_fraction: Annotated[float, _DATA] = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Share held out for the one final claim when the data has no such split.",
    )
    data_format: Annotated[
        Literal["auto", "folders", "manifest", "idx", "cifar", "archive", "torchvision"], _DATA
    ] = Field("auto", description="What DATA is, when it should not be found out.")
    strict: Annotated[bool, _DATA] = Field(
        False, description="Stop at the first picture that cannot be used, instead of listing it."
    )
    cache_folder: Annotated[str, _DATA] = Field(
        "",
        description="Where decoded pictures are kept for the next run; none: nowhere. "
        "Empty: $ONSIGHT_CACHE or ~/.cache/onsight.",
    )

    model: Annotated[str, _MODEL, SHAPES_STEP] = Field(
        "compact",
        description="A name from `onsight models` (timm's too), or package.module:callable.",
    )
    pretrained: Annotated[bool, _MODEL, SHAPES_STEP] = Field(
        False, description="Start a timm model from its published weights (may use the network)."
    )
    freeze: Annotated[bool, _MODEL, SHAPES_STEP] = Field(
        False, description="Train the last layer only, the rest stays as it is."
    )
    normalize: Annotated[Literal["auto", "dataset", "half", "none"], _MODEL] = Field(
        "auto",
        description="Input scaling: dataset = mean 0 and deviation 1 of the training pictures, "
        "half = to [-1, 1], none = to [0, 1]. auto: what pretrained weights want, else dataset.",
    )

    epochs: Annotated[int, _TRAINING] = Field(
        10, ge=1, description="Passes over the training pictures."
    )
    budget: Annotated[str, _TRAINING] = Field(
        "",
        pattern=r"^$|^[0-9]+(\.[0-9]+)?[smh]$",
        description="Time for the whole run, as 90s, 5m or 2h, instead of epochs: picture size and "
        "course of the learning rate are fitted to it, evaluation and report included.",
    )
    batch_size: Annotated[int, _TRAINING, SHAPES_STEP] = Field(
        128, ge=1, description="Pictures a step, over all devices together."
    )
    optimizer: Annotated[str, _TRAINING, SHAPES_STEP] = Field(
        "adamw", description="sgd, nesterov (sgd with it), adam, adamw, or any of timm's."
    )
    learning_rate: Annotated[float, _TRAINING] = Field(
        0.0,
        ge=0,
        description="Highest learning rate of the schedule; 0: by optimizer and model.",
    )
    momentum: Annotated[float, _TRAINING] = Field(
        0.9,
        ge=0,
        lt=1,
        description="Momentum of sgd, nesterov and of timm's optimizers that have one.",
    )
    weight_decay: Annotated[float, _TRAINING] = Field(
        0.05, ge=0, description="Weight decay; biases and norms are spared."
    )
    schedule: Annotated[Literal["one-cycle", "cosine", "linear", "constant"], _TRAINING] = Field(
        "one-cycle",
        description="Course of the learning rate over the run; linear: straight down to nothing.",
    )
    warmup_epochs: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, description="Epochs of linear warm-up before cosine, linear or constant."
    )
    loss: Annotated[Literal["cross-entropy", "mse"], _TUTORIALS, SHAPES_STEP] = Field(
        "cross-entropy",
        description="mse: mean squared error between probabilities and the one-hot label.",
    )
    label_smoothing: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, lt=1, description="Share of the label spread over all classes."
    )
    class_weights: Annotated[Literal["none", "balanced"], _TRAINING] = Field(
        "none", description="balanced: rare classes weigh more in the loss, n / (K n_class)."
    )
    ema: Annotated[float, _TRAINING, SHAPES_STEP] = Field(
        0.0, ge=0, lt=1, description="Decay a step of the weights' moving average; 0 is off."
    )
    recalibrate_norm: Annotated[bool, _TRAINING] = Field(
        False,
        description="At the end, measure batch norm's statistics anew on 4,096 training pictures "
        "as they are, without augmentation.",
    )
    clip_norm: Annotated[float, _TRAINING, SHAPES_STEP] = Field(
        0.0, ge=0, description="Largest gradient norm; 0 is off."
    )
    accumulate: Annotated[int, _TRAINING, SHAPES_STEP] = Field(
        1, ge=1, description="Parts each batch is computed in, to save memory; same update."
    )
    patience_epochs: Annotated[int, _TRAINING] = Field(
        0, ge=0, description="Stop after so many epochs without a better validation; 0 is off."
    )
    log_every_steps: Annotated[int, _TRAINING] = Field(
        0,
        ge=0,
        description="Steps between lines of the mean loss; 0: one line per epoch only.",
    )
    keep_epochs: Annotated[bool, _TUTORIALS] = Field(
        False, description="Keep a model file of every epoch, in checkpoints/epoch-NN.safetensors."
    )
    test_each_epoch: Annotated[bool, _TUTORIALS] = Field(
        False,
        description="Also report test accuracy each epoch; never used for selection.",
    )
    tta: Annotated[Tta, _TRAINING] = Field(
        "one",
        description="Tell the accuracy of several views of each picture too, beside the plain one: "
        "flip: it and its mirror image; flip-shift: both, also moved by 1 pixel.",
    )
    seed: Annotated[int, _TRAINING] = Field(0, ge=0, description="Seed of everything drawn.")

    flip: Annotated[bool, _AUGMENTATION, SHAPES_STEP] = Field(
        True, description="Mirror left-right half of the time. Turn off for digits or text."
    )
    translate: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.05,
        ge=0,
        le=0.5,
        description="Largest shift, as a share of the side; edges are reflected.",
    )
    crop_area: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        1.0, gt=0, le=1, description="Least area share of a random-resized crop; 1 is off."
    )
    rotate_degrees: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=180, description="Largest rotation either way, in degrees."
    )
    jitter: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=1, description="Strength of brightness, contrast and saturation changes."
    )
    cutout: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=1, description="Side of a blanked square, as a share of the picture's side."
    )
    mixup: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0, ge=0, le=1, description="Alpha of mixup; 0 is off."
    )
    cutmix: Annotated[float, _AUGMENTATION, SHAPES_STEP] = Field(
        0.0,
        ge=0,
        le=1,
        description="Alpha of cutmix; with mixup too, each serves half the pictures.",
    )

    device: Annotated[str, _MACHINE] = Field(
        "auto",
        description="auto, cpu, cuda, cuda:1, xpu, mps; several as all or cuda:0,cuda:2.",
    )
    ranks: Annotated[int, _MACHINE] = Field(
        0,
        ge=0,
        description="Processes that train together, sharing each batch; 0: one for each device.",
    )
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], _MACHINE, SHAPES_STEP] = Field(
        "auto", description="Arithmetic of forward and backward. auto: bf16 where a GPU has it."
    )
    memory_format: Annotated[
        Literal["auto", "channels_last", "contiguous"], _MACHINE, SHAPES_STEP
    ] = Field(
        "auto",
        description="Order of a picture's numbers in memory. auto: channels_last where the "
        "network takes it, which is faster nearly everywhere.",
    )
    residency: Annotated[
        Literal["auto", "device", "memory", "map", "stream"], _MACHINE, SHAPES_STEP
    ] = Field(
        "auto",
        description="Where decoded pictures wait: device = in the accelerator's own memory, memory "
        "= copied to RAM, map = in the cache's file, stream = nowhere: each batch is decoded anew. "
        "auto: the first that has room.",
    )
    plan: Annotated[Literal["auto", "fresh", "default"], _MACHINE] = Field(
        "auto",
        description="How what is left open here is chosen. auto: by timing the run's own step for "
        "a few seconds, once for this machine and network; fresh: anew; default: nothing is timed.",
    )
    compile: Annotated[Literal["auto", "on", "off"], _MACHINE, SHAPES_STEP] = Field(
        "auto",
        description="Use torch.compile. auto: in long runs, where a measurement says that it pays.",
    )
    threads: Annotated[int, _MACHINE, SHAPES_STEP] = Field(
        0,
        ge=0,
        description="Compute and decode threads of each rank; 0: every core it may use.",
    )

    switches: Annotated[tuple[Switch, ...], Parameter(show=False, parse=False)] = Field(
        (),
        description="Written by a run that changed how it computes while it trained, so that it "
        "can be repeated to the bit.",
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) in pixels, or None when it is to be found out."""
        if self.image_size == "auto":
            return None
        height, _, width = self.image_size.partition("x")
        return int(height), int(width or height)

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """The background as three bytes."""
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue

    @property
    def pixel_limit(self) -> int:
        """The largest picture accepted, in pixels."""
        return int(self.pixel_limit_megapixels * 1e6)


def step_fields() -> list[str]:
    """The fields that change how long a training step takes."""
    return [name for name, field in Config.model_fields.items() if SHAPES_STEP in field.metadata]


def make_config(*layers: dict[str, Any]) -> Config:
    """A config from layers of fields, the last one winning. Raises ConfigError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from error


def explain_invalid(error: ValidationError) -> str:
    """A pydantic refusal in one plain line for each field."""
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown field '{field}'.{did_you_mean(field, Config.model_fields)}")
            continue
        flag = "--" + field.replace("_", "-")
        sentence = Config.model_fields[field].description if field in Config.model_fields else ""
        lines.append(f"{flag} {problem['input']}: {problem['msg'].lower()}. ({sentence})")
    return "\n".join(lines)


def read_config_file(path: Path) -> dict[str, Any]:
    """The fields of a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from error


def config_layers(
    recipe: str | None, config_file: str | Path | None, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """The fields of a recipe, of a file and as given, the last to win. Raises ConfigError."""
    return [
        read_recipe(recipe) if recipe else {},
        read_config_file(Path(config_file)) if config_file else {},
        fields,
    ]


def save_config(config: Config, path: Path) -> None:
    """Write a config where `--config` can read it again."""
    write_atomically(path, tomli_w.dumps(config.model_dump()).encode())


def recipe_names() -> list[str]:
    """The ready-made configs inside the package."""
    folder = resources.files("onsight") / "recipes"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The fields of a recipe. Raises ConfigError naming those there are."""
    fields = _load_recipe(name)
    del fields["about"]
    return fields


def read_about(name: str) -> dict[str, str]:
    """What a recipe says of itself: data, reproduces, there, here and stand_in.

    data is the DATA it was made for; there and here are figures of its source and of this
    project; stand_in says what else it runs on. Raises ConfigError as `read_recipe`.
    """
    about: dict[str, str] = _load_recipe(name)["about"]
    return about


def _load_recipe(name: str) -> dict[str, Any]:
    names = recipe_names()
    if name not in names:
        raise ConfigError(
            f"no recipe '{name}'.{did_you_mean(name, names)} There are: {', '.join(names)}"
        )
    text = (resources.files("onsight") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
