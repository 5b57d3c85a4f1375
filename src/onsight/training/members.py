"""Trains the members of a run: one for a named model, several for `--model auto`.

Members are trained one after the other. Each has a part of the time and, if there are several, a
folder of its own. What it leaves there is not computed again when the run is resumed.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

from torch import nn

from onsight.choice import Choice
from onsight.config import (
    OVERRIDABLE_ON_RESUME,
    PLACES,
    Config,
    make_config,
    refuse_code_from_files,
)
from onsight.config_files import read_config_file
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, VALIDATION
from onsight.errors import BudgetTooSmall, Interrupted, NonFiniteLoss, NothingAdded
from onsight.evaluation.blending import choose_weights
from onsight.evaluation.predictions import HeldOutLogits, held_out_logits, take_common
from onsight.evaluation.temperature import choose_temperature
from onsight.features.choose_head import LearningCurvePoint
from onsight.hardware.memory import reset_peak_device_memory
from onsight.models.build import build_classifier
from onsight.models.classifier import Classifier
from onsight.models.file import load_model_file, save_model
from onsight.report.console import PartReporter
from onsight.tensorfile import read_tensors, write_tensors
from onsight.text import joined
from onsight.training.checkpoint import other_checkpoint
from onsight.training.decisions import ANSWER
from onsight.training.evaluate import Evaluation
from onsight.training.fit import Shared, Trained, accept, fit
from onsight.training.folds import cross_validate
from onsight.training.job import RunJob
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import Loggers, closing_loggers
from onsight.training.model_file import make_model_file
from onsight.training.open_data import OpenedData, select_candidate
from onsight.training.place import PlannedRun, place, plan_run
from onsight.training.progress import Progress, check_progress
from onsight.training.saving import Mirror
from onsight.tune.candidates import Candidate
from onsight.tune.fit_epochs import count_evaluated, release_evaluation, time_inference
from onsight.tune.plan import choose_threads
from onsight_explain.devices import is_out_of_memory, release_cached_memory

_MIN_SECONDS = 2.0  # for a member: in less, nothing useful is trained
# Of the time left, for features of a head on all images, even if they take longer than expected.
# Networks that are trained for as long as there is time get less then.
_MAX_HEAD_FRACTION = 0.8
# Held-out images; if a network is right on all of so many, others have nothing to add.
_ENOUGH_IMAGES = 200
_MIN_JUDGED = 30  # images, to tell whether a network adds something to others
_NEW = ""  # the name of the network that is being trained, which no member can have


@dataclass(frozen=True)
class Member:
    """A trained model of a run.

    Attributes:
        name: Of its candidate.
        config: The settings that it was trained with; nothing is left open.
        dataset: The images, at the size of its input.
        trained: The network.
        folds: The predictions of its cross-validation, if there was one.
        seconds: The time that training took, with that of the folds.
        image_seconds: The time to classify an image.
    """

    name: str
    config: Config
    dataset: Dataset
    trained: Trained
    folds: Evaluation | None
    seconds: float
    image_seconds: float

    @property
    def classifier(self) -> Classifier:
        """The network with its preprocessing and its own temperature."""
        return self.trained.classifier

    @property
    def parameters(self) -> int:
        """The number of its parameters."""
        return sum(parameter.numel() for parameter in self.classifier.net.parameters())

    @property
    def held_out(self) -> HeldOutLogits:
        """The logits of images that it, or the network of a fold, has not learned from."""
        return held_out_logits(self.folds.per_image) if self.folds else self.trained.held_out

    @property
    def calibrated(self) -> HeldOutLogits:
        """These logits, divided by the temperature."""
        rows = self.held_out
        return replace(rows, logits=rows.logits / self.classifier.temperature)


def train_members(
    opened: OpenedData, module: nn.Module | None, shared: Shared, job: RunJob
) -> Iterator[Member]:
    """Train the candidates in their order; yield each as soon as it is trained.

    A candidate that fails, that there is no time for, or that adds nothing to those before it, is
    left out if there is another, as are those after one that is always right.

    Args:
        opened: The images, and the candidates to train.
        module: The user's own network, if any.
        shared: Loggers, provenance and features of the run.
        job: The job of the run.

    Raises:
        NonFiniteLoss: If the only candidate's loss is not a number.
        Interrupted: After a signal, with a checkpoint written.
    """
    candidates = opened.layout.candidates
    members: list[Member] = []
    given = 0.0  # the sum of the shares so far
    perfect: Member | None = None
    for number, candidate in enumerate(candidates):
        if perfect:
            images = len(perfect.held_out.labels)
            job.reporter.say(
                f"{candidate.name} is not trained: {perfect.name} is right on all {images:,} "
                "images that it did not learn from"
            )
            continue
        fraction = min(1.0, candidate.share / max(1e-9, 1.0 - given))
        given += candidate.share
        is_last_chance = not members and number + 1 == len(candidates)
        is_recorded = _name_decision(candidate) in job.decisions
        if not is_last_chance and not _has_time(candidate, fraction, job):
            reason = "the record leaves it out" if is_recorded else "there is no time left for it"
            job.reporter.warn(f"{candidate.name} is not trained: {reason}")
            continue
        member_job = _make_member_job(candidate, fraction, job) if len(candidates) > 1 else job
        is_optional = bool(members) or any(
            later.is_from_scratch for later in candidates[number + 1 :]
        )
        member_job = replace(member_job, is_optional=is_optional)
        judge = partial(_find_no_gain, tuple(members), opened.config)
        try:
            member = _train_member(
                candidate, opened, module, replace(shared, judge=judge), member_job
            )
            if members and job.world.agree(not member.trained.progress.rows):
                raise BudgetTooSmall("the budget ended before its first training step")
        except Interrupted as stop:
            raise stop.within(candidate.name) if len(candidates) > 1 else stop from None
        except (BudgetTooSmall, NonFiniteLoss, NothingAdded, RuntimeError) as error:
            is_fatal = isinstance(error, RuntimeError) and not is_out_of_memory(error)
            if is_last_chance or is_fatal or (is_out_of_memory(error) and job.world.size > 1):
                raise
            job.decisions.record(_name_decision(candidate), False)
            job.reporter.warn(f"{candidate.name} is left out: {error}")
        else:
            members.append(member)
            job.deadline.reserve(f"evaluating {candidate.name}", _evaluation_seconds(member))
            yield member
            if job.world.agree(_is_always_right(member)):
                perfect = member
            continue
        release_cached_memory(job.device.value)  # outside `except`, where the error holds memory


def _find_no_gain(members: Sequence[Member], config: Config, rows: HeldOutLogits) -> str:
    """Return why a network that is being trained adds nothing to the members before it.

    Args:
        members: Those that are trained already.
        rows: What the network says of some images that it has not learned from.

    Returns:
        Empty if on the images that all have, the best blend includes it.
    """
    if not members or config.blend != "auto" or config.max_ms_per_image:
        return ""
    temperature = choose_temperature(rows.logits, rows.labels).value
    own = replace(rows, logits=rows.logits / temperature)
    held_out = take_common({_NEW: own, **{member.name: member.calibrated for member in members}})
    labels = held_out[_NEW].labels
    logs = {name: common.logits.log_softmax(dim=1) for name, common in held_out.items()}
    if len(labels) < _MIN_JUDGED or _NEW in choose_weights(logs, labels):
        return ""
    names = joined([member.name for member in members])
    return f"so far, it adds nothing to {names} on {len(labels):,} images held out from all"


def _is_always_right(member: Member) -> bool:
    held_out = member.held_out
    if len(held_out.labels) < _ENOUGH_IMAGES:
        return False
    return bool((held_out.logits.argmax(dim=1) == held_out.labels).all())


def _name_decision(candidate: Candidate) -> str:
    return f"train {candidate.name}"


def _has_time(candidate: Candidate, fraction: float, job: RunJob) -> bool:
    if candidate.is_head:  # it may take the time of others, whose training is then shorter
        fraction = max(fraction, _MAX_HEAD_FRACTION)
    return job.decisions.decide(
        _name_decision(candidate),
        lambda: fraction * job.deadline.remaining() >= _MIN_SECONDS,
        ANSWER,
    )


def _evaluation_seconds(member: Member) -> float:
    """Return the time to evaluate a member within the model, which comes after all training."""
    if member.folds:  # its predictions are those of the folds
        return 0.0
    validation, test = (len(member.dataset.ids(part)) for part in (VALIDATION, TEST))
    return count_evaluated(member.config, validation, test) * member.image_seconds


def _make_member_job(candidate: Candidate, fraction: float, job: RunJob) -> RunJob:
    folder = job.folder.of_part("members", candidate.name)
    if job.world.is_main:
        folder.make_checkpoints()
    job.world.wait_for_first_rank("member")
    essential_fraction = max(0.0, _MAX_HEAD_FRACTION - fraction) if candidate.is_head else 0.0
    return replace(
        job,
        folder=folder,
        reporter=PartReporter(job.reporter, candidate.name),
        deadline=job.deadline.part(fraction, essential_fraction),
        decisions=job.decisions.of_part(folder.path),
        is_planned=bool(job.world.agree(folder.plan.exists())),
    )


def _train_member(
    candidate: Candidate,
    opened: OpenedData,
    module: nn.Module | None,
    shared: Shared,
    job: RunJob,
) -> Member:
    """Train a candidate, with its cross-validation; or load it if it has been trained before."""
    begun = time.perf_counter()
    is_part = job.folder.run is not None
    job.world.report_activity("choosing how to train")
    if is_part:
        job.begin_decisions(opened.key)
        config = _read_config(candidate, opened, job)
        if config.threads:  # of a member on record: each may have another number
            job = replace(job, threads=choose_threads(config.threads))
        opened = select_candidate(opened, candidate, config, job)
    has_weights = job.folder.held_out.exists() or job.folder.last_checkpoint.exists()
    job = replace(job, has_weights=bool(job.world.agree(job.resume and has_weights)))
    planned = plan_run(place(opened, module, job), job)
    _save_start(planned, job)
    facts = {**shared.provenance, "config": planned.config.model_dump()}
    shared = replace(shared, provenance=facts)
    with _start_loggers(planned.config, shared, job) as loggers:
        shared = replace(shared, loggers=loggers)
        folds = None
        if planned.dataset.folds.value > 1:
            release_evaluation(job.deadline)  # each training reserves its own
            folds = cross_validate(planned, shared, job)
            shared = replace(shared, judge=accept)
            job.phases["folds"] = job.phases.get("folds", 0.0) + sum(
                row["seconds"] for row in folds.folds
            )
        finished = _load_trained(planned, job) if is_part and job.resume else None
        if finished:
            trained, seconds, image_seconds = finished
        else:
            part = replace(job, deadline=job.deadline.part(1.0)) if folds else job
            trained = fit(planned, shared, part)
            for phase, phase_seconds in trained.seconds.items():
                job.phases[phase] = job.phases.get(phase, 0.0) + phase_seconds
            seconds = time.perf_counter() - begun
            image_seconds = planned.estimates.image_seconds
            # Again, as the time for the evaluation follows from it.
            if is_part or planned.config.max_ms_per_image:
                again = time_inference(trained.classifier, planned.data)
                image_seconds = max(image_seconds, again)
            if is_part and job.world.is_main:
                _save_trained(trained, seconds, image_seconds, planned, shared, job)
    release_evaluation(job.deadline)
    return Member(
        candidate.name,
        planned.config,
        planned.dataset,
        trained,
        folds,
        seconds,
        image_seconds,
    )


@contextmanager
def _start_loggers(config: Config, shared: Shared, job: RunJob) -> Iterator[Loggers]:
    """Start the run's loggers, or a member's own, which log in its folder."""
    run = LoggedRun(job.folder.path, shared.provenance["data"], config.model_dump())
    if job.folder.run is None:
        shared.loggers.start(run)
        yield shared.loggers
        return
    with closing_loggers(config.loggers if job.world.is_main else [], job.reporter) as loggers:
        loggers.start(run)
        yield loggers


def _read_config(candidate: Candidate, opened: OpenedData, job: RunJob) -> Config:
    """Return the candidate's settings.

    They are those of this run before it was interrupted, or those of the run that is repeated, with
    what may change on resume; or else those of the run with what the candidate sets.
    """
    repeated = job.decisions.repeated_run
    for path in (job.folder.config, repeated and repeated / job.folder.config.name):
        if path and path.exists():
            # Only the user names code to run and places to write to: files can be anybody's.
            names = {*PLACES, *(OVERRIDABLE_ON_RESUME & opened.config.model_fields_set)}
            given = {name: getattr(opened.config, name) for name in names}
            return refuse_code_from_files(make_config(read_config_file(path), given), {})
    return candidate.apply(opened.config)


def _save_start(planned: PlannedRun, job: RunJob) -> None:
    """Save the resolved config, and the reasons for it, before training."""
    reset_peak_device_memory(job.device.value)  # that of the networks that were only timed
    job.save_config(planned.config)
    if job.world.is_main and not job.is_planned:
        # In a resumed run, all settings look as if the user had made them.
        planned.plan.save(job.folder.plan)


def _save_trained(
    trained: Trained,
    seconds: float,
    image_seconds: float,
    planned: PlannedRun,
    shared: Shared,
    job: RunJob,
) -> None:
    """Save a finished member: its model file, and then what a resumed run needs besides."""
    facts = {
        "data_key": planned.data_key,
        "progress": asdict(trained.progress),
        "temperature": trained.temperature.reason,
        "out_of_distribution": trained.out_of_distribution.reason,
        "phases": trained.seconds,
        "fitted": trained.fitted,
        "fewer": [tuple(point) for point in trained.fewer],
        "left_out": trained.left_out,
        "seconds": seconds,
        "image_seconds": image_seconds,
        "elapsed_seconds": job.deadline.whole.elapsed(),
    }
    path = job.folder.model_file
    save_model(
        path,
        make_model_file(planned.config, planned.dataset, trained.classifier, {}, shared.provenance),
    )
    write_tensors(job.folder.held_out, vars(trained.held_out), facts)
    if planned.config.checkpoints:
        mirror = Mirror(planned.config.checkpoints, job.folder)
        for file in (path, job.folder.held_out):
            mirror.try_to_copy(file, job.reporter.warn)


def _load_trained(planned: PlannedRun, job: RunJob) -> tuple[Trained, float, float] | None:
    """Load a finished member with its seconds, of training and of an image; None if it is not."""
    if not job.world.agree(job.folder.held_out.exists()):
        return None
    tensors, facts = read_tensors(job.folder.held_out)
    if facts["data_key"] != planned.data_key:
        return None
    file = load_model_file(job.folder.model_file)
    with other_checkpoint(job.folder.held_out):
        check_progress(facts["progress"])
        job.deadline.count_earlier(facts.get("elapsed_seconds", 0.0))
        trained = Trained(
            build_classifier(file, job.device.value).feature_member,
            Progress(**facts["progress"]),
            Choice(file.temperature, facts["temperature"]),
            Choice(file.out_of_distribution, facts["out_of_distribution"]),
            facts["phases"],
            HeldOutLogits(**tensors),
            facts["fitted"],
            tuple(LearningCurvePoint(*point) for point in facts["fewer"]),
            facts.get("left_out", 0),
        )
        return trained, facts["seconds"], facts["image_seconds"]
