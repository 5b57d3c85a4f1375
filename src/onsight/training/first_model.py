"""Makes a first model from a few images, so that there is one while the others are decoded."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from onsight.data.cache import NO_CACHE, find_cache_folder
from onsight.data.pack import is_packed
from onsight.data.sizes import make_pack_job
from onsight.data.sources.source import count_held_out, draw_rows, select_rows
from onsight.errors import DiskError, UserError
from onsight.report.console import SilentReporter
from onsight.training.blend_members import blend_members
from onsight.training.decisions import Decisions
from onsight.training.fit import Shared
from onsight.training.job import RunJob
from onsight.training.layout import Layout
from onsight.training.loggers.loggers import Loggers
from onsight.training.members import train_members
from onsight.training.open_data import open_data
from onsight.training.run_folder import RunFolder
from onsight.training.save_run import save_best_so_far
from onsight.tune.candidates import Candidate
from onsight.tune.work import decoding_seconds, nominal_seconds
from onsight_explain.devices import is_out_of_memory, release_cached_memory

_IMAGES = 500
_MAX_IMAGE_FRACTION = 0.5  # of all images: more leave little to wait for after the first ones
# Nominal, from when images are decoded until the first network is trained. Starting takes about
# 5 s more, and the first model up to 10 s.
_MIN_WAITING_SECONDS = 15.0
_MIN_SECONDS = 120.0  # for the whole run, so that the first model takes a tenth of it at most

# Whatever else is set: images are seen in one view, and nothing is stored, logged or held out.
_SETTINGS = {
    "flip": False,
    "folds": "1",
    "test_fraction": 0.0,
    "residency": "auto",
    "cache_folder": NO_CACHE,
    "checkpoints": "",
    "log": "none",
    "budget": "",
    "head_images": 0,
}


def make_first_model(layout: Layout, job: RunJob) -> None:
    """Fit the head of `--model auto` on a few images, if decoding all of them takes long.

    The model file of the run is then complete before the other images are decoded, and is replaced
    as soon as the first network is trained. Nothing else of the run depends on it. If it cannot be
    made, a warning says why.

    Args:
        layout: The images and the networks of the run.
        job: The job, whose first rank makes the model.
    """
    if not job.world.is_main or not _is_worthwhile(layout, job):
        return
    job.world.report_activity("making a first model")
    total = len(layout.source.index)
    with job.timed("first model"), job.world.watchdog_paused():
        try:
            count = _fit_first_model(layout, job)
        except (UserError, DiskError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            job.reporter.warn(f"there is no first model: {error}")
        else:
            job.reporter.say(
                f"first model: a head fitted on {count:,} of {total:,} images, "
                f"in {job.folder.model_file}"
            )
    release_cached_memory(job.device.value)  # outside `except`, where an error holds memory


def _is_worthwhile(layout: Layout, job: RunJob) -> bool:
    """Return whether the run begins with a fitted head for which its user would wait long."""
    source, config = layout.source, layout.config
    cache_folder = find_cache_folder(config.cache_folder)
    waiting_seconds = layout.candidates[0].seconds
    if not is_packed(make_pack_job(source, layout.image_size, config), cache_folder):
        waiting_seconds += decoding_seconds(source)
    return (
        layout.candidates[0].is_head
        and config.loss == "cross-entropy"
        and waiting_seconds > _MIN_WAITING_SECONDS
        and nominal_seconds(config, len(source.index)) >= _MIN_SECONDS
        and source.shards is None  # of which a few images cost as much as all
        and not job.folder.model_file.exists()  # of this run before it was interrupted
    )


def _without_limit(head: Candidate) -> Candidate:
    """Return the head fitted on all images: there are few."""
    fields = {name: value for name, value in head.fields.items() if name != "head_images"}
    return replace(head, fields=fields, share=1.0)


def _fit_first_model(layout: Layout, job: RunJob) -> int:
    """Write the model file of the run; return the number of images that it was made from."""
    config = layout.config.model_copy(update=_SETTINGS)
    held_out = count_held_out(layout.source)
    count = min(_IMAGES, int(_MAX_IMAGE_FRACTION * (len(layout.source.index) - held_out)))
    drawn = draw_rows(layout.source, count, config.seed)[held_out:]
    few = replace(
        layout,
        source=select_rows(layout.source, np.sort(drawn)),
        config=config,
        candidates=(_without_limit(layout.candidates[0]),),
    )
    decisions = Decisions()
    decisions.record("learning curve", False)  # which the whole run will measure
    with tempfile.TemporaryDirectory(prefix="onsight-") as temporary:
        part = RunJob(
            reporter=SilentReporter(),
            device=job.device,
            threads=job.threads,
            decisions=decisions,
            folder=RunFolder(Path(temporary), None, resumed=False, run=job.folder.out),
        )
        opened = open_data(few, None, part)
        shared = Shared(Loggers([], job.reporter.warn), opened.provenance)
        (member,) = train_members(opened, None, shared, part)
    save_best_so_far(blend_members([member], opened, part), opened, opened.provenance, job)
    return opened.dataset.used
