"""Blends the members of a run into its model, or keeps the best of them.

K classes, M members, n images.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.evaluation.blending import choose_weights
from onsight.evaluation.metrics import accuracy_with_interval, proportion_with_interval
from onsight.evaluation.predictions import (
    HeldOutLogits,
    PredictionTable,
    concatenate_tables,
    held_out_logits,
    take_common,
)
from onsight.evaluation.results import FoldResult, MemberResult
from onsight.evaluation.temperature import choose_temperature
from onsight.models.blend import Blend, blend_logits
from onsight.models.classifier import ImageClassifier
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.report.console import Reporter, SilentReporter
from onsight.text import duration, joined, percent
from onsight.training.evaluate import Evaluation, evaluate
from onsight.training.job import RunJob
from onsight.training.members import Member
from onsight.training.open_data import OpenedData

_COSTLY = 10  # times the time of the best member


@dataclass(frozen=True)
class FinalModel:
    """The model that a run ends with: one of its members, or a blend of several."""

    classifier: ImageClassifier
    members: tuple[Member, ...]  # all members that were trained
    # Of each member in the blend, by name; members that were left out have none.
    weights: Mapping[str, float]
    temperature: Choice[float]  # of the classifier, with its reason
    out_of_distribution: Choice[OutOfDistributionDetector | None]  # its detector, with the reason

    @property
    def kept(self) -> tuple[Member, ...]:
        """The members that the model consists of."""
        return tuple(member for member in self.members if member.name in self.weights)

    @property
    def main(self) -> Member:
        """The member with the largest weight."""
        return max(self.kept, key=lambda member: self.weights[member.name])

    @property
    def dataset(self) -> Dataset:
        """The images, at the size of the largest input."""
        return max((member.dataset for member in self.kept), key=_input_pixels)

    @property
    def feature_member(self) -> Member:
        """The member whose features the detector uses."""
        return _choose_feature_member(self.kept)

    @property
    def image_seconds(self) -> float:
        """The time to classify an image."""
        return sum(member.image_seconds for member in self.kept)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(member.parameters for member in self.kept)

    @property
    def name(self) -> str:
        """The name of its network, or those of its members' networks."""
        names = [member.config.model for member in self.kept]
        return names[0] if len(names) == 1 else f"blend of {joined(names)}"


def blend_members(members: Sequence[Member], opened: OpenedData, job: RunJob) -> FinalModel:
    """Choose the weights of members on images that none has learned from, and blend them.

    Args:
        opened: The images, and the settings of the run, which may limit the blend.
        job: The job, whose first rank chooses.
    """
    evaluated = [member for member in members if len(member.held_out.ids)] or members[:1]
    held_out = _find_common(evaluated)
    chosen = job.world.broadcast(
        "weights",
        lambda: json.dumps(_choose_allowed(evaluated, held_out, opened.config, job.reporter)),
    )
    weights: dict[str, float] = json.loads(chosen)
    kept = [member for member in evaluated if member.name in weights]
    if len(kept) == 1:
        trained = kept[0].trained
        temperature, detector = trained.temperature, trained.out_of_distribution
        return FinalModel(trained.classifier, tuple(members), weights, temperature, detector)
    logits = _blend_rows([held_out[member.name].logits for member in kept], weights)
    temperature = choose_temperature(logits, held_out[kept[0].name].labels)
    temperature = replace(temperature, value=job.world.agree(temperature.value))
    feature_member = _choose_feature_member(kept)
    detector = feature_member.trained.out_of_distribution
    classifier = Blend(
        {member.name: member.classifier for member in kept},
        weights,
        feature_member.name,
        temperature.value,
        detector.value,
    )
    return FinalModel(classifier, tuple(members), weights, temperature, detector)


def _choose_feature_member(members: Sequence[Member]) -> Member:
    """Return the first pretrained member, or else the one with the most parameters."""
    return max(members, key=lambda member: (member.config.starts_from_weights, member.parameters))


def _input_pixels(dataset: Dataset) -> int:
    height, width = dataset.format.model_size
    return height * width


def _find_common(members: Sequence[Member]) -> dict[str, HeldOutLogits]:
    """Return each member's calibrated logits for the images that all have, in the same order."""
    return take_common({member.name: member.calibrated for member in members})


def _choose_allowed(
    members: Sequence[Member],
    held_out: Mapping[str, HeldOutLogits],
    config: Config,
    reporter: Reporter,
) -> dict[str, float]:
    """Return the weights of the best blend that --blend and --max-ms-per-image allow."""
    most = len(members) if config.blend == "auto" else 1
    groups = [group for size in range(most, 0, -1) for group in combinations(members, size)]
    limit = config.max_ms_per_image / 1000
    allowed = [group for group in groups if not limit or _image_seconds(group) <= limit]
    if not allowed:
        fastest = min(members, key=lambda member: member.image_seconds)
        reporter.warn(
            f"none of the networks trained takes at most {config.max_ms_per_image:g} ms per "
            f"image: the fastest, {fastest.name}, takes {1000 * fastest.image_seconds:.2g} ms"
        )
        return {fastest.name: 1.0}
    if len(allowed) == len(groups) and config.blend == "auto":
        allowed = groups[:1]  # the blend of all members leaves out those that do not help
    choices = [_choose_weights(group, held_out) for group in allowed]
    return min(choices, key=lambda weights: _mean_loss(weights, held_out))


def _image_seconds(members: Sequence[Member]) -> float:
    return sum(member.image_seconds for member in members)


def _choose_weights(
    members: Sequence[Member], held_out: Mapping[str, HeldOutLogits]
) -> dict[str, float]:
    logs = {member.name: held_out[member.name].logits.log_softmax(dim=1) for member in members}
    return choose_weights(logs, held_out[members[0].name].labels)


def _blend_rows(logits: Sequence[Tensor], weights: Mapping[str, float]) -> Tensor:
    """Blend logits (n, K) of the members, in the order of the weights."""
    return logits[0] if len(logits) == 1 else blend_logits(logits, list(weights.values()))


def _mean_loss(weights: Mapping[str, float], held_out: Mapping[str, HeldOutLogits]) -> float:
    """Return the log loss of a blend; 0 without images."""
    rows = [held_out[name] for name in weights]
    blended = _blend_rows([row.logits for row in rows], weights)
    return float(F.cross_entropy(blended, rows[0].labels)) if len(blended) else 0.0


def evaluate_model(final: FinalModel, opened: OpenedData, job: RunJob) -> Evaluation:
    """Return the predictions for every held-out image, on every rank."""
    for member in final.members:
        job.deadline.release(f"evaluating {member.name}")  # whose turn has come
    if final.main.folds:
        return blend_folds(final, opened.dataset.fold, opened.config)
    with job.timed("test"):
        return evaluate(final.classifier, final.dataset, opened.config.tta, job.world)


def blend_folds(final: FinalModel, fold_of: NDArray[np.int8], config: Config) -> Evaluation:
    """Return the predictions for the images of all folds.

    Those of a fold come from a blend whose members, weights and temperature were chosen on the
    other folds.

    Args:
        final: A model whose members were cross-validated.
        fold_of: The fold of each image of the run, (N,).
        config: The settings of the run, which may limit the blend.
    """
    evaluations = {member.name: member.folds for member in final.members if member.folds}
    members = [member for member in final.members if member.name in evaluations]
    main = evaluations[final.main.name]
    calibrated = {member.name: member.calibrated for member in members}
    folds = torch.from_numpy(fold_of)[final.main.held_out.ids]
    chosen = {}
    for fold in folds.unique().tolist():
        others = {name: rows.take(folds != fold) for name, rows in calibrated.items()}
        chosen[fold] = _choose_allowed(members, others, config, SilentReporter())
    alone = {final.main.name: 1.0}
    if all(weights == alone for weights in [final.weights, *chosen.values()]):
        return main
    per_image = _blend_parts(chosen, calibrated, folds)
    scores = evaluations[final.feature_member.name].per_image.out_of_distribution
    per_image = replace(per_image, out_of_distribution=scores)
    views = {
        name: held_out_logits(found.views) for name, found in evaluations.items() if found.views
    }
    rows = []
    for number, row in enumerate(main.folds):
        inside = fold_of[per_image.ids] == row["fold"]
        correct = int((per_image.labels == per_image.predicted)[inside].sum())
        accuracy = proportion_with_interval("accuracy", correct, int(inside.sum()))
        seconds = sum(evaluations[name].folds[number]["seconds"] for name in final.weights)
        rows.append(cast(FoldResult, {**row, **accuracy, "seconds": seconds}))
    return Evaluation(
        per_image,
        _blend_parts(chosen, views, folds) if views else None,
        main.split,
        tuple(rows),
    )


def _blend_parts(
    chosen: Mapping[int, Mapping[str, float]], held_out: Mapping[str, HeldOutLogits], folds: Tensor
) -> PredictionTable:
    """Blend the logits of the same images with the weights chosen for each fold.

    Args:
        folds: The fold of each image, (n,).
    """
    parts = []
    for fold, weights in chosen.items():
        others, inside = (
            [held_out[name].take(part) for name in weights]
            for part in (folds != fold, folds == fold)
        )
        blended = _blend_rows([rows.logits for rows in others], weights)
        temperature = choose_temperature(blended, others[0].labels).value
        logits = _blend_rows([rows.logits for rows in inside], weights)
        parts.append(replace(inside[0], logits=logits).tabulate(temperature))
    return concatenate_tables(parts)


def held_out_table(final: FinalModel) -> PredictionTable:
    """Return the predictions for the images that its weights were chosen on."""
    if len(final.kept) == 1:
        return final.main.held_out.tabulate(final.temperature.value)
    held_out = _find_common(final.kept)
    logits = _blend_rows([rows.logits for rows in held_out.values()], final.weights)
    rows = replace(held_out[final.main.name], logits=logits)
    return rows.tabulate(final.temperature.value)


def describe_members(final: FinalModel, z: float) -> list[MemberResult]:
    """Return the facts of all members, in the order in which they were trained.

    Args:
        z: The two-sided normal quantile of the intervals' level.
    """
    return [_describe_member(member, final, z) for member in final.members]


def _describe_member(member: Member, final: FinalModel, z: float) -> MemberResult:
    table = member.held_out.tabulate()
    height, width = member.dataset.format.model_size
    facts: dict[str, Any] = {
        "name": member.name,
        "model": member.config.model,
        "images": len(table),
        **accuracy_with_interval(table, z=z),
        "loss": float(table.losses.mean()) if len(table) else None,
        "weight": final.weights.get(member.name, 0.0),
        "image_size": [height, width],
        "parameters": member.parameters,
        "seconds": member.seconds,
        "ms_per_image": 1000 * member.image_seconds,
    }
    return cast(MemberResult, facts)


def report_member(member: Member, reporter: Reporter) -> None:
    """Say how accurate a trained network is on images that it has not learned from."""
    config, table = member.config, member.held_out.tabulate()
    height, width = member.dataset.format.model_size
    if config.freeze:
        how = f"only the last layer of {config.model} was trained"
    else:
        how = "fine-tuned" if config.starts_from_weights else "from scratch"
        if config.model != member.name:
            how = f"{config.model}, {how}"
    accuracy = "accuracy unknown"
    if len(table):
        kind = "cross-validated" if member.folds else "validation"
        share = percent(accuracy_with_interval(table)["accuracy"])
        accuracy = f"{share} of {len(table):,} {kind} images"
    reporter.say(f"{member.name}: {accuracy} ({how}, {height}x{width}, {duration(member.seconds)})")


def report_blend(final: FinalModel, reporter: Reporter) -> None:
    """Say what the model consists of and what it costs."""
    best = final.main
    if len(final.kept) == 1:
        reporter.say(f"model: {best.name} alone, {_cost(best.image_seconds)}")
        return
    parts = [f"{percent(final.weights[member.name])} {member.name}" for member in final.kept]
    reporter.say(
        f"model: a blend of {joined(parts)}, {_cost(final.image_seconds)} "
        f"({best.name} alone: {_cost(best.image_seconds)})"
    )
    _report_costly_blend(final, reporter)


def _report_costly_blend(final: FinalModel, reporter: Reporter) -> None:
    """Say so if the best member alone is many times as fast, and nearly as accurate."""
    best = final.main
    if final.image_seconds < _COSTLY * best.image_seconds:
        return
    blend, alone = held_out_table(final), best.held_out.tabulate()
    least = accuracy_with_interval(blend)["accuracy_low"]
    share = accuracy_with_interval(alone)["accuracy"]
    if least is not None and share is not None and share >= least:
        times = final.image_seconds / best.image_seconds
        reporter.say(
            f"the blend takes {times:.0f} times as long as {best.name}, whose {percent(share)} on "
            f"{len(alone):,} images are within its interval: --blend off keeps {best.name} alone"
        )


def _cost(image_seconds: float) -> str:
    return f"{1000 * image_seconds:.2g} ms per image"
