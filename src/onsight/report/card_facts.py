"""The facts on a model card: the model and its run, its limits, and how it was made."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, cast

from onsight.data.sources.source import is_memory_name
from onsight.evaluation.results import ClassResult, Results, check_types
from onsight.files import refuse_links
from onsight.limits import FEW_IMAGES
from onsight.models.catalog import builtin_names, is_user_spec
from onsight.models.file import FILE_NAME, BlendFile, ModelFile, load_model_file
from onsight.report.run_files import LenientDict, read_json, read_results, refuse_other_results
from onsight.report.sentences import is_imbalanced, pair_sentence
from onsight.text import duration, gib, joined, percent, plural

_PAIRS_SHOWN = 5
_WATT_SECONDS = 3600  # watt-seconds per watt-hour


@dataclass(frozen=True)
class CardSubject:
    """The model that a card describes, with the facts from its run folder."""

    name: str
    path: Path  # the argument for `onsight predict`
    file: ModelFile | BlendFile
    results: Results  # results.json, or without a run folder the results in the model file
    plan: LenientDict  # plan.json
    environment: LenientDict  # environment.json

    @property
    def data_name(self) -> str:
        """The last part of DATA's name: where it was stored is private."""
        data = str(self.file.provenance.get("data") or "unnamed images")
        return data if is_memory_name(data) else PurePath(data).name or data

    @property
    def config(self) -> LenientDict:
        """The settings of the run."""
        config = self.file.provenance.get("config")
        return LenientDict(config if isinstance(config, dict) else {})


def read_card_subject(model: Path) -> CardSubject:
    """Read a run folder, or a model file alone. Raises ModelError, OutputError."""
    refuse_links(model)
    file = load_model_file(model)
    results: dict[str, Any] = dict(file.results)
    check_types(model, results, Results)
    saved = read_results(model)  # empty, as what is read below, for a model file alone
    refuse_other_results(model, results)
    return CardSubject(
        name=model.resolve().name if model.is_dir() else _name_of_file(model),
        path=model,
        file=file,
        results=cast(Results, LenientDict(results | saved)),
        plan=_as_object(read_json(model / "plan.json")),
        environment=_as_object(read_json(model / "environment.json")),
    )


def limitations(subject: CardSubject) -> list[str]:
    """Return the model's limitations, as sentences that follow from its facts."""
    return [
        *_limits_of_any_classifier(subject),
        *_limits_of_the_test(subject),
        *_limits_of_the_classes(subject),
    ]


def training_facts(subject: CardSubject) -> list[str]:
    """Return sentences on the network, its training, the machine and the energy."""
    return [
        *_network_facts(subject),
        *_run_facts(subject),
        *_machine_facts(subject),
        *_energy_facts(subject),
    ]


def _as_object(value: object) -> LenientDict:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, LenientDict) else LenientDict()


def _name_of_file(model: Path) -> str:
    path = model.resolve()
    return path.parent.name if path.name == FILE_NAME else path.stem


def _limits_of_any_classifier(subject: CardSubject) -> Iterator[str]:
    file = subject.file
    image = file.format
    height, width = map(min, image.model_size, (image.height, image.width))
    yield (
        f"It always predicts one of its {plural(len(file.classes), 'class', 'classes')}: an image "
        "of anything else gets one of these names too, sometimes with high confidence."
    )
    yield (
        f"Every image is reduced to {height}x{width} pixels"
        + (" in grey" if image.channels == 1 else "")
        + ", so details that are lost there cannot be recognised."
    )


def _limits_of_the_test(subject: CardSubject) -> Iterator[str]:
    if subject.results["accuracy"] is None:
        return
    yield (
        "The figures hold for images like the test images, which come from the same collection as "
        "the training images. With another camera, place, season or way of choosing images, "
        "expect different and usually lower figures."
    )
    split = _as_object(subject.plan["split"])
    if split["reason"]:
        yield f"How images were held out: {split['value']} ({split['reason']})."
    yield from (f"{note[:1].upper()}{note[1:]}." for note in subject.results["notes"] or [])
    if unused := subject.results["problems"]:
        images = plural(unused, "image")
        yield f"{images} could not be used, neither for training nor for testing."


def _limits_of_the_classes(subject: CardSubject) -> Iterator[str]:
    classes = subject.results["classes"] or []
    yield from _barely_tested_classes(classes)
    if is_imbalanced(classes):
        yield (
            "Some classes have over twice as many test images as others, and so more weight in "
            "the accuracy; the balanced accuracy weights all classes equally."
        )
    pairs = subject.results["confused_pairs"] or []
    yield from map(pair_sentence, pairs[:_PAIRS_SHOWN])


def _barely_tested_classes(classes: list[ClassResult]) -> Iterator[str]:
    if not any(row["images"] for row in classes):
        return
    untested = [f"'{row['name']}'" for row in classes if not row["images"]]
    few = [
        f"'{row['name']}' ({row['images']})" for row in classes if 0 < row["images"] < FEW_IMAGES
    ]
    if untested:
        yield f"Nothing is known about {joined(untested)}: not tested on any image."
    if few:
        yield (
            f"Fewer than {FEW_IMAGES} test images, too few to rely on the figures of a class: "
            f"{joined(few)}."
        )


def _network_facts(subject: CardSubject) -> Iterator[str]:
    file, config = subject.file, subject.config
    if isinstance(file, BlendFile):
        yield from _blend_facts(file)
        return
    yield f"Network: {_describe_network(file, subject.results['parameters'])}."
    yield from _head_facts(file)
    if config["pretrained"] or config["weights"]:
        how = "the backbone was frozen" if config["freeze"] else "all of it was fine-tuned"
        weights = "published weights" if config["pretrained"] else "weights that the user provided"
        terms = f" ({file.weights_license})" if file.weights_license else ""
        yield (
            f"It started from {weights}, whose license{terms} and training data matter too; {how}."
        )
    else:
        yield "It started from random weights."


def _blend_facts(file: BlendFile) -> Iterator[str]:
    yield (
        f"A blend of {plural(len(file.members), 'network')}, which all classify every image: its "
        "probabilities are the weighted mean of theirs."
    )
    for name, member in file.members.items():
        height, width = member.format.model_size
        weight = percent(file.member_weights[name])
        yield (
            f"Member {name}, with a weight of {weight}: {_describe_network(member)}; its input "
            f"is {height}x{width} pixels."
        )
        yield from _head_facts(member)
        if member.weights_license:
            yield (
                f"It started from published weights, whose license ({member.weights_license}) and "
                "training data matter too."
            )


def _describe_network(file: ModelFile, parameters: int | None = None) -> str:
    """Describe a network; without the number of its parameters, all its numbers are counted."""
    name = file.model
    origin = (
        "a user-defined network"
        if is_user_spec(name)
        else "from Onsight"
        if name in builtin_names()
        else "from timm"
    )
    count = sum(tensor.numel() for tensor in file.weights.values())
    return f"{name}, {origin}, with {plural(parameters or count, 'parameter')}"


def _head_facts(file: ModelFile) -> Iterator[str]:
    if file.uses_all_layers:
        yield "Its head receives features of intermediate layers, not only of the last one."
    if file.hidden_units:
        units = plural(file.hidden_units, "unit")
        yield f"Its head has a hidden layer of {units}, added by Onsight."


def _run_facts(subject: CardSubject) -> Iterator[str]:
    results, config = subject.results, subject.config
    # A blend's settings are those from which each of its networks has got its own.
    if results["epochs"] and config and isinstance(subject.file, ModelFile):
        yield (
            f"Training: {plural(results['epochs'], 'epoch')}, batch size {config['batch_size']}, "
            f"optimizer {config['optimizer']}, seed {config['seed']}; best epoch on the "
            f"validation images: {results['best_epoch']}."
        )
    seconds = (results["phases"] or {}).get("training")
    if seconds is not None and results["seconds"]:
        total = duration(results["seconds"])
        yield f"Time: {total} in total, {duration(seconds)} of it for training."


def _machine_facts(subject: CardSubject) -> Iterator[str]:
    environment = subject.environment
    if environment["device_name"]:
        ranks = subject.results["ranks"] or 1
        processes = f"{ranks} processes on " if ranks > 1 else ""
        yield f"Machine: {processes}{environment['device_name']} ({environment['device']})."
    if memory := subject.results["peak_memory_bytes"]:
        yield f"Peak memory: {gib(memory)}."
    versions = subject.file.provenance.get("versions")
    if versions and isinstance(versions, dict):
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield f"Made with {names}."


def _energy_facts(subject: CardSubject) -> Iterator[str]:
    """State the energy per 100 W: power was not measured, and guesses about it vary tenfold."""
    seconds = subject.results["seconds"]
    if not seconds:
        return
    ranks = subject.results["ranks"] or 1
    hours = 100 * seconds / _WATT_SECONDS
    watt_hours = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
    yield (
        "Energy and emissions were not measured. For every 100 W that the machine drew, this run "
        f"used {watt_hours} Wh" + (" on each machine." if ranks > 1 else ".")
    )
