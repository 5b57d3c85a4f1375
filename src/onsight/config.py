"""The settings of a run: every flag of `onsight train` is a field of Config, with its help text.

Flags take precedence over --config FILE, which takes precedence over --recipe NAME and the defaults
below. `config_files` reads and saves settings.
"""

from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Group, Parameter
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from onsight.errors import ConfigError, did_you_mean

_DATA = Parameter(group=Group("Data", sort_key=1))
_MODEL = Parameter(group=Group("Model", sort_key=2))
_TRAINING = Parameter(group=Group("Training", sort_key=3))
_AUGMENTATION = Parameter(group=Group("Augmentation (training images only)", sort_key=4))
MACHINE = Group("Machine", sort_key=5)
_MACHINE = Parameter(group=MACHINE)
_USUAL = Parameter(show=True)  # also in --help, not only in --help-all
_TUTORIALS = Parameter(group=Group("Only to reproduce tutorials", sort_key=6))

# Marks a field that affects how long a training step takes. Cached plans depend on these fields.
AFFECTS_STEP_TIME = object()

# Settings about where a run computes, stores and reports, which may change when it is resumed.
# Another device, number of ranks or of threads changes how sums are rounded (docs/architecture.md).
OVERRIDABLE_ON_RESUME = {
    "device", "ranks", "restarts", "threads", "cache_folder", "residency", "log",
    "checkpoint_steps", "checkpoint_seconds", "checkpoints",
}  # fmt: skip

# Settings that name a place to write to: a config file cannot set them, only the user.
PLACES = ("cache_folder", "checkpoints")

# Settings without effect if the head of a frozen network is fitted on features. Settings that
# Onsight fills in itself, such as the learning rate, are missing, because they are always set.
_UNUSED_BY_FITTED_HEAD = {
    "epochs", "batch_size", "optimizer", "momentum", "weight_decay", "schedule", "warmup_epochs",
    "label_smoothing", "ema", "recalibrate_norm", "clip_norm", "patience_epochs",
    "log_every_steps", "checkpoint_seconds", "checkpoint_steps", "checkpoints", "keep_epochs",
    "translate", "rotate_degrees", "jitter", "cutout", "mixup", "cutmix",
}  # fmt: skip

Tta = Literal["none", "flip", "flip-shift"]


class RetiredField(NamedTuple):
    """A field of older versions.

    Attributes:
        default: Its former default, which is dropped silently, because every saved config has it.
        instead: What to do instead, for the error message.
    """

    default: object
    instead: str


# Valid values of the fields with a pattern or several types, for error messages.
_FORMS = {
    "background": "a colour, such as #ffffff",
    "epochs": "auto, or a number from 1 to 1,000,000",
    "budget": "a positive number and a unit, such as 90s, 5m or 2h",
    "folds": "auto, or a number from 1 to 99",
    "image_size": "auto, 64, or HEIGHTxWIDTH, such as 48x64",
    "log": "none, or tensorboard, mlflow or wandb; several with commas and no spaces",
}

RETIRED_FIELDS = {
    "decode_on": RetiredField("cpu", "JPEGs are always decoded on the CPU, so remove it"),
}


class Config(BaseModel):
    """All settings of a run, saved as config.toml in the run folder."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True
    )

    # --- Data ---

    image_size: Annotated[str, _DATA] = Field(
        "auto",
        pattern=r"^(auto|[1-9][0-9]{0,4}(x[1-9][0-9]{0,4})?)$",
        description="Image size in pixels: 64, or HEIGHTxWIDTH. auto: the images' own size "
        "if they are all small and of one size, otherwise the size the model expects; with "
        "published weights at most twice the images' own.",
    )
    channels: Annotated[Literal["auto", "1", "3"], BeforeValidator(str), _DATA] = Field(
        "auto",
        description="1 for greyscale, 3 for colour. auto: 1 if every image is stored in greyscale.",
    )
    fit: Annotated[Literal["stretch", "crop", "pad"], _DATA] = Field(
        "stretch",
        description="How to resize images to that size: stretch, crop the centre, or pad with "
        "the background colour.",
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
        description="Reject larger images before allocating memory for them.",
    )
    validation_fraction: Annotated[float, _DATA] = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Fraction held out for validation if the data has no validation split.",
    )
    test_fraction: Annotated[float, _DATA] = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Fraction held out for the final test if the data has no test split.",
    )
    group_by: Annotated[str, _DATA] = Field(
        "",
        description="A regular expression for paths, such as 'patient_[0-9]+': images with the "
        "same matching text stay together on one side of every split. The column `group` of a "
        "manifest does the same.",
    )
    split_near_duplicates: Annotated[Literal["auto", "together", "apart"], _DATA] = Field(
        "auto",
        description="Keep resized, re-encoded, slightly cropped or mirrored copies of an image "
        "on one side of every split. auto: together if there are at most 2,000 different images, "
        "among which they are found in seconds.",
    )
    folds: Annotated[str, _DATA] = Field(
        "auto",
        pattern=r"^(auto|[1-9][0-9]?)$",
        description="Cross-validation with this many folds; the final model is trained on all "
        "images. 1: hold out a test set instead. auto: 5 if a test set would have fewer than 200 "
        "images and time permits.",
    )
    train_images: Annotated[int, _DATA] = Field(
        0,
        ge=0,
        description="Train on this many images, chosen at random. 0: all, or with a budget as "
        "many as can be decoded in time.",
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
    ] = Field("auto", description="Format of DATA. auto: detect it.")
    label: Annotated[str, _DATA] = Field(
        "",
        description="The manifest column with the labels, such as species, if there are several.",
    )
    label_from: Annotated[str, _DATA] = Field(
        "",
        description="A regular expression whose first group matches the label in each path, for "
        "data without class folders: '([a-z]+)_[0-9]+' for cat_001.jpg.",
    )
    crop_boxes: Annotated[bool, _DATA] = Field(
        False,
        description="Crop each box of COCO, Pascal VOC or CVAT annotations to a separate image.",
    )
    strict: Annotated[bool, _DATA] = Field(
        False, description="Stop at the first unreadable image instead of listing it."
    )
    cache_folder: Annotated[str, _DATA] = Field(
        "",
        description="Folder to keep decoded images in for the next run. none: keep nothing. "
        "Empty: $ONSIGHT_CACHE or ~/.cache/onsight.",
    )
    shard_cache_gigabytes: Annotated[float, _DATA] = Field(
        0.0,
        ge=0,
        le=1_000_000,
        description="Maximum size of the local copies of remote shards; the least recently used "
        "are deleted first. 0: half of the free disk space.",
    )

    # --- Model ---

    model: Annotated[str, _MODEL, _USUAL, AFFECTS_STEP_TIME] = Field(
        "auto",
        description="A name from `onsight models` (including timm's), or "
        "package.module:callable. auto: a blend of a pretrained network with a new last layer, the "
        "same network fine-tuned, and a small one from scratch, as far as images and budget allow.",
    )
    pretrained: Annotated[bool, _MODEL, AFFECTS_STEP_TIME] = Field(
        False, description="Start from a timm model's published weights (may download them)."
    )
    weights: Annotated[str, _MODEL] = Field(
        "",
        description="Start from the weights in this file (.safetensors, .pth, .pt or .bin) or run "
        "folder; a last layer for other classes is initialized from scratch.",
    )
    member: Annotated[str, _MODEL] = Field(
        "",
        description="Name of the network to start from, if --weights is a blend. Default: the one "
        "whose features embed and similar use.",
    )
    blend: Annotated[Literal["auto", "off"], _MODEL] = Field(
        "auto",
        description="auto: `--model auto` blends the models that it trains, if that is no worse "
        "on images held out; off: it keeps the best one.",
    )
    max_ms_per_image: Annotated[float, _MODEL] = Field(
        0.0,
        ge=0,
        description="Keep a blend, or one of its models, that classifies an image on this machine "
        "in at most so many milliseconds; 0: no limit.",
    )
    freeze: Annotated[bool, _MODEL, AFFECTS_STEP_TIME] = Field(
        False, description="Freeze the backbone and train only the last layer."
    )
    head_images: Annotated[int, _MODEL] = Field(
        0,
        ge=0,
        description="The most images, mirror images included, that the last layer of a frozen "
        "network is fitted on. 0: as many as the effort or the budget has time for.",
    )
    normalize: Annotated[Literal["auto", "dataset", "half", "none"], _MODEL] = Field(
        "auto",
        description="Input scaling. dataset: mean 0 and standard deviation 1 over the training "
        "images; half: to [-1, 1]; none: to [0, 1]. auto: what the initial weights expect, "
        "otherwise dataset.",
    )

    # --- Training ---

    epochs: Annotated[
        Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"],
        _TRAINING,
        _USUAL,
        Parameter(show_choices=False),
    ] = Field(
        "auto",
        description="Passes over the training images: auto, or a number. auto: as many as the "
        "effort or the budget has time for.",
    )
    effort: Annotated[Literal["quick", "normal", "best"], _TRAINING, _USUAL] = Field(
        "normal",
        description="About how long to train: quick 30 s, normal 3 min (4 min for more than 50,000 "
        "images), best 20 min on two quiet cores, everything included. What is trained follows "
        "from a table and not from a clock, so the same command gives the same model.",
    )
    budget: Annotated[str, _TRAINING, _USUAL] = Field(
        "",
        pattern=r"^$|^([0-9]*[1-9][0-9]*(\.[0-9]+)?|0+\.0*[1-9][0-9]*)[smh]$",
        description="Time for the whole run, by the clock: 90s, 5m, 2h. Includes "
        "evaluation and the report; image size and learning rate schedule are chosen to fit. "
        "--config RUN/config.toml repeats such a run bit for bit.",
    )
    batch_size: Annotated[int, _TRAINING, AFFECTS_STEP_TIME] = Field(
        128,
        ge=1,
        le=1_000_000,
        description="Images per step, over all devices together. Unless set, smaller when "
        "fine-tuning on few images.",
    )
    optimizer: Annotated[str, _TRAINING, AFFECTS_STEP_TIME] = Field(
        "adamw",
        description="sgd, nesterov (SGD with Nesterov momentum), adam, adamw, or one of timm's.",
    )
    learning_rate: Annotated[float, _TRAINING] = Field(
        0.0,
        ge=0,
        description="Peak learning rate. 0: chosen for the optimizer and model.",
    )
    momentum: Annotated[float, _TRAINING] = Field(
        0.9,
        ge=0,
        lt=1,
        description="Momentum of sgd, nesterov and timm's momentum optimizers.",
    )
    weight_decay: Annotated[float, _TRAINING] = Field(
        0.05, ge=0, description="Weight decay; not applied to biases and normalization layers."
    )
    layer_decay: Annotated[float, _TRAINING] = Field(
        0.0,
        ge=0,
        le=1,
        description="Layer-wise learning rate decay: each layer's rate is this fraction of the "
        "next one's, so early layers change least. 0: 0.9 from published weights, otherwise 1.",
    )
    norm_statistics: Annotated[Literal["auto", "batch", "frozen"], _TRAINING, AFFECTS_STEP_TIME] = (
        Field(
            "auto",
            description="Batch norm statistics while training. batch: of each batch; frozen: the "
            "initial ones. auto: frozen when starting from published weights, otherwise batch.",
        )
    )
    schedule: Annotated[Literal["one-cycle", "cosine", "linear", "constant"], _TRAINING] = Field(
        "one-cycle", description="Learning rate schedule. linear: decay linearly to zero."
    )
    warmup_epochs: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, description="Epochs of linear warmup (not for one-cycle)."
    )
    loss: Annotated[Literal["cross-entropy", "mse"], _TUTORIALS, AFFECTS_STEP_TIME] = Field(
        "cross-entropy",
        description="mse: mean squared error between the probabilities and the one-hot label.",
    )
    label_smoothing: Annotated[float, _TRAINING] = Field(
        0.0, ge=0, lt=1, description="Fraction of each label spread over all classes."
    )
    class_weights: Annotated[Literal["auto", "none", "sqrt", "balanced"], _TRAINING] = Field(
        "auto",
        description="Class weights in the loss, for imbalanced data. balanced: 1 / n_class, so all "
        "classes count equally; sqrt: its square root. auto: sqrt if the largest class has over 5 "
        "times as many images as the smallest, otherwise none.",
    )
    ema: Annotated[float, _TRAINING, AFFECTS_STEP_TIME] = Field(
        0.0,
        ge=0,
        lt=1,
        description="Decay per step of an exponential moving average of the weights. 0: off. "
        "Unless set, on when fine-tuning, with a decay that suits the number of steps.",
    )
    recalibrate_norm: Annotated[Literal["auto", "on", "off"], _TRAINING] = Field(
        "auto",
        description="Before each evaluation, recompute the batch norm statistics on 1,024 training "
        "images without augmentation. auto: only in the first 200 steps, in which they lag behind "
        "the weights.",
    )
    clip_norm: Annotated[float, _TRAINING, AFFECTS_STEP_TIME] = Field(
        0.0, ge=0, description="Clip the gradient norm to this value. 0: off."
    )
    accumulate: Annotated[int, _TRAINING, AFFECTS_STEP_TIME] = Field(
        0,
        ge=0,
        description="Gradient accumulation: compute each batch in this many parts to save memory. "
        "The update is the same. 0: on a CPU, as many as keep a part's activations below 0.7 GB, "
        "but one if batch norm is trained; on an accelerator, one until memory runs out.",
    )
    patience_epochs: Annotated[int, _TRAINING] = Field(
        0,
        ge=0,
        description="Stop early after this many epochs without a better validation result. 0: off.",
    )
    log_every_steps: Annotated[int, _TRAINING] = Field(
        0,
        ge=0,
        description="Print the mean loss after this many steps. 0: once per epoch.",
    )
    log: Annotated[str, _TRAINING] = Field(
        "tensorboard",
        pattern=r"^(none|(tensorboard|mlflow|wandb)(,(tensorboard|mlflow|wandb))*)$",
        description="Experiment trackers: tensorboard, mlflow, wandb, several as mlflow,wandb, or "
        "none. They write to the run folder unless you configured a server or key.",
    )
    checkpoint_seconds: Annotated[float, _TRAINING] = Field(
        600.0,
        ge=0,
        description="Maximum time between checkpoints, and so the most work a killed run can "
        "lose. 0: after every step. Each epoch also ends with one.",
    )
    checkpoint_steps: Annotated[int, _TRAINING] = Field(
        0, ge=0, description="Maximum steps between checkpoints. 0: no limit."
    )
    checkpoints: Annotated[str, _TRAINING] = Field(
        "",
        description="Also copy checkpoints here, in case the machine is lost with its disk: a "
        "folder, or a URL such as s3://bucket/run (onsight[remote]).",
    )
    keep_epochs: Annotated[bool, _TUTORIALS] = Field(
        False, description="Save a model after every epoch: checkpoints/epoch-NN.safetensors."
    )
    test_each_epoch: Annotated[bool, _TUTORIALS] = Field(
        False,
        description="Also report test accuracy after each epoch; it is never used for selection.",
    )
    tta: Annotated[Tta, _TRAINING] = Field(
        "none",
        description="Test-time augmentation: also report the accuracy averaged over several views "
        "of each image. flip: the image and its mirror image; flip-shift: both, and shifted by 1 "
        "pixel.",
    )
    seed: Annotated[int, _TRAINING, _USUAL] = Field(
        0, ge=0, lt=2**63, description="Seed for all randomness."
    )

    # --- Augmentation ---

    flip: Annotated[bool, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        True,
        description="Mirror half of the images horizontally. Turn off for digits and text.",
    )
    translate: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.05,
        ge=0,
        le=0.5,
        description="Maximum shift, as a fraction of the side; edges are reflected.",
    )
    crop_area: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        1.0,
        gt=0,
        le=1,
        description="Minimum area of a random resized crop, as a fraction of the image. 1: off. "
        "Unless set, 0.8 when fine-tuning.",
    )
    rotate_degrees: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.0, ge=0, le=180, description="Maximum rotation in either direction, in degrees."
    )
    jitter: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.0,
        ge=0,
        le=1,
        description="Strength of random changes in brightness, contrast and saturation.",
    )
    cutout: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.0,
        ge=0,
        le=1,
        description="Side of a blanked-out square, as a fraction of the image's side.",
    )
    mixup: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.0, ge=0, le=1, description="Mixup alpha. 0: off."
    )
    cutmix: Annotated[float, _AUGMENTATION, AFFECTS_STEP_TIME] = Field(
        0.0,
        ge=0,
        le=1,
        description="CutMix alpha. 0: off. With mixup, each is applied to half of the images.",
    )

    # --- Machine ---

    device: Annotated[str, _MACHINE, _USUAL] = Field(
        "auto",
        description="auto, cpu, cuda, cuda:1, xpu or mps; several as all or cuda:0,cuda:2.",
    )
    ranks: Annotated[int, _MACHINE] = Field(
        0,
        ge=0,
        le=4096,
        description="Processes that train together and share each batch. 0: one per device.",
    )
    restarts: Annotated[int, _MACHINE] = Field(
        3,
        ge=0,
        le=1000,
        description="How often to restart a run with several ranks from its last checkpoint after "
        "losing one.",
    )
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], _MACHINE, AFFECTS_STEP_TIME] = (
        Field(
            "auto",
            description="Numeric precision. auto: bf16 on GPUs that support it, "
            "and for a frozen network on CPUs that do.",
        )
    )
    memory_format: Annotated[
        Literal["auto", "channels_last", "contiguous"], _MACHINE, AFFECTS_STEP_TIME
    ] = Field(
        "auto",
        description="Memory layout. auto: channels_last if the network supports it, which is "
        "nearly always faster, but contiguous for depthwise convolutions on a GPU, whose kernels "
        "would be compiled for each batch size.",
    )
    residency: Annotated[
        Literal["auto", "device", "memory", "map", "stream"], _MACHINE, AFFECTS_STEP_TIME
    ] = Field(
        "auto",
        description="Where decoded images are held. device: accelerator memory; memory: RAM; map: "
        "a memory-mapped cache file; stream: nowhere, each batch is decoded again. auto: the first "
        "with enough room.",
    )
    plan: Annotated[Literal["auto", "fresh", "default"], _MACHINE] = Field(
        "auto",
        description="How to choose the machine settings left open. fresh: time the real training "
        "step for a few seconds, and keep the fastest for later runs on this machine; default: by "
        "rule; auto: timed with a budget, otherwise those kept, or by rule.",
    )
    kernels: Annotated[Literal["repeatable", "fastest"], _MACHINE, AFFECTS_STEP_TIME] = Field(
        "repeatable",
        description="repeatable: rerunning gives bit-identical results. fastest: let cuDNN "
        "benchmark its kernels for each shape (NVIDIA and AMD GPUs); the last bits differ from run "
        "to run.",
    )
    compile: Annotated[Literal["auto", "on", "off"], _MACHINE, AFFECTS_STEP_TIME] = Field(
        "auto",
        description="Use torch.compile. auto: in long runs, if timing shows that it pays off.",
    )
    cuda_graph: Annotated[Literal["auto", "on", "off"], _MACHINE, AFFECTS_STEP_TIME] = Field(
        "auto",
        description="Capture whole training steps as a CUDA graph and replay them, which removes "
        "nearly all CPU overhead. auto: if timing shows that it pays off.",
    )
    threads: Annotated[int, _MACHINE, AFFECTS_STEP_TIME] = Field(
        0,
        ge=0,
        le=1024,
        description="Threads per rank for compute and decoding. 0: all available cores.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true for a number, which pydantic would take for 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise PydanticCustomError("bool", "input should not be true or false")
        return value

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) in pixels, or None for auto."""
        if self.image_size == "auto":
            return None
        height, _, width = self.image_size.partition("x")
        return int(height), int(width or height)

    @property
    def epoch_count(self) -> int:
        """The number of epochs, which must have been chosen."""
        if self.epochs == "auto":
            raise ValueError("the number of epochs has not been chosen")
        return self.epochs

    @property
    def starts_from_weights(self) -> bool:
        """True for published or given weights, False for random ones."""
        return self.pretrained or bool(self.weights)

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """The background as (red, green, blue), 0 to 255."""
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue

    @property
    def loggers(self) -> list[str]:
        """The experiment trackers, without duplicates."""
        return [] if self.log == "none" else [*dict.fromkeys(self.log.split(","))]

    @property
    def pixel_limit(self) -> int:
        """The largest accepted image, in pixels."""
        return int(self.pixel_limit_megapixels * 1e6)


def make_config(*layers: dict[str, Any]) -> Config:
    """Merge layers of fields into a config; later layers take precedence. Raises ConfigError."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(explain_invalid(error)) from error


def refuse_code_from_files(config: Config, fields: dict[str, Any]) -> Config:
    """Return the config, unless it names code to run that the user did not name.

    Args:
        config: The config, which may come from a file.
        fields: The fields that the user set directly.

    Raises:
        ConfigError: If a file names the code.
    """
    if ":" in config.model and "model" not in fields:
        raise ConfigError(
            f"the config names code, model = '{config.model}', and code named by a file is not "
            f"run; if you trust that code, add --model {config.model}"
        )
    return config


def fields_for_resume(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields to pass again when a run resumes; the others are read from its folder.

    The code of a model is among them, because it runs only if the user names it.
    """
    names = OVERRIDABLE_ON_RESUME | ({"model"} if ":" in str(fields.get("model")) else set())
    return {name: value for name, value in fields.items() if name in names}


def step_time_fields() -> list[str]:
    """Return the names of the fields that are marked AFFECTS_STEP_TIME."""
    return [
        name for name, field in Config.model_fields.items() if AFFECTS_STEP_TIME in field.metadata
    ]


def find_unused_by_fitted_head(config: Config) -> list[str]:
    """Return the flags that were set but have no effect, because the head is fitted on features."""
    return [
        "--" + name.replace("_", "-")
        for name, field in Config.model_fields.items()
        if name in config.model_fields_set & _UNUSED_BY_FITTED_HEAD
        and getattr(config, name) != field.default
    ]


def drop_retired(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop retired fields that have their former default."""
    return {
        name: value
        for name, value in fields.items()
        if name not in RETIRED_FIELDS or value != RETIRED_FIELDS[name].default
    }


def explain_invalid(error: ValidationError) -> str:
    """Describe a pydantic error in one line per field."""
    lines = []
    for problem in error.errors():
        field, *types = [str(part) for part in problem["loc"]]  # of a field with several types
        if problem["type"] == "extra_forbidden":
            lines.append(explain_unknown(field))
            continue
        flag = "--" + field.replace("_", "-")
        if types or problem["type"] == "string_pattern_mismatch":
            lines.append(f"{flag} {problem['input']}: write {_FORMS[field]}.")
            continue
        description = Config.model_fields[field].description if field in Config.model_fields else ""
        lines.append(f"{flag} {problem['input']}: {problem['msg'].lower()}. ({description})")
    return "\n".join(dict.fromkeys(lines))


def explain_unknown(name: str) -> str:
    """Explain that a config has no field of this name, and what to write instead."""
    if name in RETIRED_FIELDS:
        return f"'{name}' was removed: {RETIRED_FIELDS[name].instead}."
    return f"unknown field '{name}'.{did_you_mean(name, Config.model_fields)}"
