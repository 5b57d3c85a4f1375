"""Trains a classifier: `train` runs the stages, each of which hands on what it has found."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import nn

from onsight.choice import Choice
from onsight.data.sources.memory import InMemory
from onsight.errors import BudgetTooSmall, ConfigError, Interrupted
from onsight.evaluation.results import MemberResult, Results
from onsight.files import refuse_inside_data, write_json
from onsight.hardware.devices import describe_environment
from onsight.ranks.launch import launch
from onsight.report import run_files
from onsight.report.console import Reporter, headline
from onsight.report.run_files import write_problems
from onsight.text import duration, joined, notebook_table, resume_hint, rough_duration
from onsight.training.blend_members import (
    FinalModel,
    blend_members,
    evaluate_model,
    report_blend,
    report_member,
)
from onsight.training.decisions import CANDIDATES, MEMBERS, NAMES
from onsight.training.first_model import make_first_model
from onsight.training.fit import Shared
from onsight.training.job import RunJob, report_device, start_job
from onsight.training.layout import Layout, choose_layout, find_data
from onsight.training.loggers.logger import LoggedRun
from onsight.training.loggers.loggers import closing_loggers
from onsight.training.members import Member, train_members
from onsight.training.open_data import OpenedData, open_data
from onsight.training.request import Request, read_request
from onsight.training.run_folder import choose_run_folder
from onsight.training.save_run import save_best_so_far, save_run
from onsight.tune.plan import Plan
from onsight.tune.work import OTHER_SECONDS, decoding_seconds
from onsight.untrusted import read_json

_TOLERATED_SECONDS = 0.5  # over a budget, without a warning
_UNUSED_FRACTION = 0.1  # of a budget, without a reason


@dataclass(frozen=True)
class Run:
    """A finished run. In a notebook, it shows its accuracy and its confusion matrix.

    Attributes:
        path: The run folder.
        results: The content of `results.json`, such as `results["classes"]`.
        rank: The rank of this process, if several train together.
    """

    path: Path
    results: Results
    rank: int = 0

    def __repr__(self) -> str:
        return f"<Run {self.path}: {headline(self.results)}>"

    def _repr_html_(self) -> str:
        from onsight.report.figures import confusion_image  # imports matplotlib

        names = [row["name"] for row in self.results["classes"]]
        facts = {"result": headline(self.results), "classes": joined(names)}
        confusion = self.results["confusion"]
        plot = confusion_image(confusion, names) if confusion and self.results["images"] else ""
        return (
            notebook_table("Run", {"folder": self.path, **facts})
            + f'<p><a href="{self._report_address()}" target="_blank">Open the report</a></p>'
            + f'<div style="max-width: 32rem">{plot}</div>'
        )

    def _report_address(self) -> str:
        """Return the report's address for a notebook, which opens only what is below its folder."""
        report, folder = self.report.absolute(), Path.cwd()
        if not report.is_relative_to(folder):
            return report.as_uri()
        return quote(os.fsencode(report.relative_to(folder)))

    @property
    def accuracy(self) -> float | None:
        """The share of held-out images that were classified correctly."""
        return self.results["accuracy"]

    @property
    def members(self) -> list[MemberResult]:
        """The models that `--model auto` trained; empty for a run of one named model."""
        return self.results.get("members", [])

    @property
    def model(self) -> Path:
        """The model file."""
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"


def train(
    data: str | Path | InMemory,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: str | None = None,
    config_file: str | Path | None = None,
    reporter: Reporter | None = None,
    verbose: bool = False,
    spent: Callable[[], float] | None = None,
    restarted: bool = False,
    **fields: Any,
) -> Run:
    """Train a classifier on images.

    Args:
        data: Any DATA that the command takes, a pair (images, labels), or a torch Dataset whose
            items are (image, label). Images are paths, Pillow images, or arrays or tensors of
            uint8 or of floats from 0 to 1.
        out: The run folder; by default a new one in `runs`.
        resume: Continue the run in `out`.
        recipe: The name of a recipe, as in `onsight recipes`.
        config_file: Settings that a run has saved. What that run decided by time or memory is
            repeated if its images and settings are the same.
        reporter: Where progress is shown. Default: stderr.
        verbose: Print every choice and every epoch, if no reporter is given.
        spent: Returns the seconds of the budget used so far. Default: those since this call.
        restarted: Continue the run in `out` if it has begun; the time in between counts towards
            its budget.
        **fields: Settings, such as `epochs=5`. `model` may also be a torch.nn.Module, which is
            then trained in place.

    Raises:
        UserError: The caller can fix the problem.
        Interrupted: A signal has stopped the run; a checkpoint was written.
        NonFiniteLoss: A loss is not a number.
        DiskError: A file cannot be written.
    """
    request = read_request(
        data,
        fields,
        out=out,
        resume=resume,
        recipe=recipe,
        config_file=config_file,
        reporter=reporter,
        verbose=verbose,
        spent=spent,
        restarted=restarted,
    )
    if len(request.devices.value) > 1:
        return _launch(request)
    with start_job(request) as (job, resolved), _naming_what_is_kept(job):
        job.world.report_activity("preparing the images and the plan")
        source = find_data(resolved, request.config, job)
        report_device(job)
        layout = choose_layout(source, request.config, job)
        if not job.resume:  # or else nothing is written before `check_images`
            job.decisions.record_repeated()
            job.save_config(layout.config)  # from here on the run can be resumed
        _report_expected_time(layout, job)
        make_first_model(layout, job)
        opened = open_data(layout, request.module, job)
        job.check_images(opened.key)
        is_finished = job.resume and request.module is None and _is_finished(job.folder.path)
        if job.world.agree(is_finished):
            job.reporter.say(f"{job.folder.path} is finished: there is nothing left to do")
            return Run(job.folder.path, read_results(job.folder.path), job.world.rank)
        job.begin_decisions(opened.key)
        _save_start(opened, job)
        with _open_shared(opened, job) as shared:
            final = _train_model(opened, request.module, shared, job)
            evaluation = evaluate_model(final, opened, job)
            results = save_run(final, evaluation, opened, shared.provenance, job)
            if results:
                shared.loggers.log_results(results)
            _warn_if_late(job)
        if request.module:  # with a moving average, the evaluated weights are in a copy
            request.module.load_state_dict(final.main.classifier.net.state_dict())
    return Run(job.folder.path, results or read_results(job.folder.path), job.world.rank)


@contextmanager
def _naming_what_is_kept(job: RunJob) -> Iterator[None]:
    """If the block is interrupted, say where the best model so far is, and how to go on.

    If its budget is too small, nothing is kept.
    """
    try:
        yield
    except BudgetTooSmall:
        job.folder.discard()
        raise
    except (Interrupted, KeyboardInterrupt) as stop:
        if job.folder.model_file.exists():
            job.reporter.warn(f"the best model so far is in {job.folder.model_file}")
        if isinstance(stop, KeyboardInterrupt) and job.folder.config.exists():
            job.reporter.warn(resume_hint(job.folder.out))
        raise


def _train_model(
    opened: OpenedData, module: nn.Module | None, shared: Shared, job: RunJob
) -> FinalModel:
    """Train all candidates; after each, the best model so far is on disk."""
    members: list[Member] = []
    names = [candidate.name for candidate in opened.layout.candidates]
    for member in train_members(opened, module, shared, job):
        members.append(member)
        report_member(member, job.reporter)
        final = blend_members(members, opened, job)
        if len(names) > 1 and job.world.is_main and not _has_better_model(members, names, job):
            save_best_so_far(final, opened, shared.provenance, job)
    if CANDIDATES in job.decisions:
        job.decisions.decide(MEMBERS, lambda: [member.name for member in members], NAMES)
    if len(names) > 1:
        report_blend(final, job.reporter)
    _report_unused_time(opened, job)
    return final


def _report_expected_time(layout: Layout, job: RunJob) -> None:
    """Say about how long a run without a budget takes, if the table knows its networks."""
    parts = {candidate.name: candidate.seconds for candidate in layout.candidates}
    if layout.config.budget or not all(parts.values()):
        return
    parts["everything else"] = OTHER_SECONDS + decoding_seconds(layout.source)
    texts = [f"{name} {rough_duration(seconds)}" for name, seconds in parts.items()]
    total = rough_duration(sum(parts.values()))
    job.reporter.say(f"time: about {total} on two quiet cores: {joined(texts)}")


def _report_unused_time(opened: OpenedData, job: RunJob) -> None:
    """Say why a budget is not used up; plan.json says so, too."""
    left_seconds = job.deadline.remaining() if job.deadline.is_set else 0.0
    if not job.world.is_main or left_seconds <= _UNUSED_FRACTION * job.deadline.budget_seconds:
        return
    names = joined([candidate.name for candidate in opened.layout.candidates])
    reason = (
        f"{names} took less time than expected or did not improve further, and no other network "
        "would both fit in and help"
    )
    job.reporter.say(f"budget: {duration(left_seconds)} are not used: {reason}")
    facts = read_json(job.folder.plan)
    facts["unused_seconds"] = asdict(Choice(round(left_seconds, 1), reason))
    write_json(job.folder.plan, facts)


def _has_better_model(members: Sequence[Member], names: Sequence[str], job: RunJob) -> bool:
    """Return whether a run that is resumed has left a model of more members, or with results."""
    folders = [job.folder.of_part("members", name) for name in names]
    finished = sum(folder.held_out.exists() for folder in folders)
    return finished > len(members) or (job.folder.path / "results.json").exists()


def _is_finished(run: Path) -> bool:
    """Return whether a run has written all its files; the path of the report is the last fact."""
    files = ("model.safetensors", "predictions.csv", "report.html")
    results = run_files.read_json(run / "results.json")
    is_last = isinstance(results, dict) and "report" in results
    return is_last and all((run / file).exists() for file in files)


def _warn_if_late(job: RunJob) -> None:
    late_seconds = job.deadline.elapsed() - job.deadline.budget_seconds
    if job.deadline.is_set and late_seconds > _TOLERATED_SECONDS:
        job.reporter.warn(
            f"budget: the run took {duration(late_seconds)} longer, as work that cannot be left "
            "out was slower than expected"
        )


def _launch(request: Request) -> Run:
    """Train in one process for each device."""
    if not isinstance(request.data, (str, Path)):
        raise _cannot_send("images in memory", "save them as files")
    path = request.out or choose_run_folder(str(request.data))
    refuse_inside_data(path, str(request.data), "../runs/first")
    if request.module is not None:
        raise _cannot_send("a network in memory", "pass it as package.module:callable")
    arguments = {
        "data": str(request.data),
        "out": str(path),
        "resume": request.resume,
        **request.arguments,
        "begun": time.monotonic() - request.elapsed(),
    }
    ranks, restarts = len(request.devices.value), request.config.restarts
    launch(arguments, ranks, path, restarts, request.reporter.warn)
    return Run(path, read_results(path))


def _cannot_send(what: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"{what} cannot be sent to other processes: {remedy}, or start your script with torchrun"
    )


def _save_start(opened: OpenedData, job: RunJob) -> None:
    """Save what is known before training: the layout, the environment and unusable files."""
    job.save_config(opened.config)
    if not job.world.is_main:
        return
    folder = job.folder.path
    if len(opened.layout.candidates) > 1 and not job.is_planned:
        measured = Choice(list[dict[str, Any]](), "by each member")
        Plan({**opened.choices, "device": job.device}, measured).save(job.folder.plan)
    write_json(folder / "environment.json", describe_environment(job.device.value))
    write_problems(folder / "problems.csv", opened.dataset.problems)


@contextmanager
def _open_shared(opened: OpenedData, job: RunJob) -> Iterator[Shared]:
    """Make what all trainings share; a run of several models logs only its results itself."""
    config, provenance = opened.config, opened.provenance
    with closing_loggers(config.loggers if job.world.is_main else [], job.reporter) as loggers:
        if len(opened.layout.candidates) > 1:
            loggers.start(LoggedRun(job.folder.path, provenance["data"], config.model_dump()))
            loggers.begin(0, 0)
        yield Shared(loggers, provenance)


def read_results(run: Path) -> Results:
    """Return the results in a finished run folder."""
    results: Results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results
