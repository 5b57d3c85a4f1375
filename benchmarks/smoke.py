"""Does every benchmark run? Each with its smallest settings, on generated images.

    python benchmarks/smoke.py [--only NAME ...]

Two run at a time, in processes that import torch once. A line on stdout says whether a benchmark
ran, was skipped (and why) or failed. The figures mean nothing, and RESULTS.md does not change. The
exit code is 1 if a benchmark failed.
"""

import argparse
import contextlib
import importlib
import io
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).parent
AT_ONCE = 2
# Threads that wait in a busy loop would take the cores from the other benchmark.
THREADS = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


@dataclass(frozen=True)
class Inputs:
    """Images in the layouts that the benchmarks read."""

    folder: Path

    @property
    def fashion(self) -> Path:
        """Four files like Fashion-MNIST's: 600 images for training, 200 for testing."""
        return self.folder / "fashion"

    @property
    def photos(self) -> Path:
        """JPEGs in the layout of PetImages."""
        return self.folder / "PetImages"

    @property
    def wallpapers(self) -> Path:
        """Large JPEGs in the layout of Debian's wallpapers."""
        return self.folder / "wallpapers"

    @property
    def clip_art(self) -> Path:
        """PNG files by category."""
        return self.folder / "openclipart"

    @property
    def sets(self) -> Path:
        """The output of image_sets.py: folders with train/CLASS and test/CLASS."""
        return self.folder / "sets"

    def make(self) -> None:
        """Write all images."""
        from image_files import make_jpeg, write_fashion_sample, write_photos
        from PIL import Image

        for place in (self.fashion, self.sets):
            place.mkdir()
        write_fashion_sample(self.fashion, 600, 200)
        write_photos(self.photos, 240)
        for number in range(3):
            images = self.wallpapers / f"Wallpaper{number}" / "contents" / "images"
            images.mkdir(parents=True)
            (images / "1600x1200.jpg").write_bytes(make_jpeg(number, (1600, 1200)))
        for number in range(10 * 40):
            path = self.clip_art / f"category{number % 10}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.open(io.BytesIO(make_jpeg(number, (32, 32)))).save(path)


class Skipped(Exception):
    """A benchmark cannot run here; the message says why."""


def call_main(name: str, *arguments: object) -> None:
    """Call a benchmark's main function."""
    importlib.import_module(name).main([str(argument) for argument in arguments])


def require(name: str, *modules: str, program: str = "") -> None:
    """Import a benchmark, and skip the rest if a module or a program that it needs is missing."""
    importlib.import_module(name)
    missing = [module for module in modules if not find_spec(module)]
    if program and not shutil.which(program):
        missing.append(program)
    if missing:
        raise Skipped(f"imported only: {', '.join(missing)} not installed")


def run_auto(inputs: Inputs) -> None:
    """Run contenders that need no other library, then write the tables."""
    lines = inputs.folder / "auto.jsonl"
    runs = ("--sets", "wallpaper-cells-6-3", "--budgets", 9, "--seeds", 1)
    contenders = ("auto-no-layers", "sprint", "sklearn")
    call_main("auto", inputs.sets, *runs, "--contenders", *contenders, "--out", lines)
    call_main("auto", "--summary", lines)


def run_efforts(inputs: Inputs) -> None:
    lines = inputs.folder / "efforts.jsonl"
    runs = ("--sets", "wallpaper-cells-6-3", "--times", "9s")
    call_main("efforts", inputs.sets, *runs, "--out", lines)
    call_main("efforts", "--summary", lines, "--chart", inputs.folder / "budgets.svg")


def make_image_sets(inputs: Inputs) -> None:
    """Make both kinds of sets, which other benchmarks read."""
    source = ("--source", inputs.wallpapers)
    call_main("image_sets", "wallpapers", inputs.sets, *source, "--train", 6, "--test", 3)
    call_main("image_sets", "clip-art", inputs.sets, "--source", inputs.clip_art, "--shrink", 32)


def run_predict(inputs: Inputs) -> None:
    """Run it on a model trained here."""
    import onsight
    from onsight.report.console import SilentReporter

    folder, quiet = inputs.folder / "run", SilentReporter()
    run = onsight.train(inputs.photos, out=folder, model="lenet", epochs=1, reporter=quiet)
    sizes = ("--images", 40, "--rounds", 1, "--inputs", 200, "--kills", 1)
    call_main("predict", run.model, inputs.photos, *sizes)


def run_card() -> None:
    """Run it on the simulated device."""
    from onsight_explain.simulated.install import simulated_device

    sizes = ("--seconds", 0.01, "--batch-sizes", 4, "--models", "lenet")
    with simulated_device() as machine:
        call_main("card", "--device", "simulated:1", *sizes)
        machine.check()


def run_shards() -> None:
    """Run it from a local folder, and from nginx if installed."""
    call_main("shards", "web", "--images", 40, "--rounds", 1, "--shard-images", 10)


def run_scaling(inputs: Inputs) -> None:
    """Run the simulation on the stored measurements."""
    lines = HERE / "scaling_lines.jsonl"
    call_main("scaling", "check", lines)
    call_main("scaling", "plan", lines, "--chart", inputs.folder / "chart.svg")


def explain_public() -> None:
    """Skip: it needs checkouts of public repositories."""
    importlib.import_module("explain_public")
    raise Skipped("imported only: needs checkouts of ten public repositories")


def make_benchmarks(inputs: Inputs) -> dict[str, Callable[[], None]]:
    """The calls by name of benchmark: slow ones first, the simulated device last."""
    fashion, photos, folder = inputs.fashion, inputs.photos, inputs.folder
    one_round = ("--rounds", 1)
    steps = ("--seconds", 0.1, "--tune-seconds", 0.1, "--threads", 1, "--work", folder)
    folds = ("--draws", 1, "--images", 60, "--folds", 2, "--epochs", 1)
    planted = ("--only", "sync_in_loop", "--seconds", 8, "--fashion", fashion)
    art, odd = inputs.sets / "clip-art-32", ("--outliers", 10, "--art", 40)
    return {
        "gpu": partial(call_main, "gpu", "--device", "cpu", "--smoke"),
        "predict": partial(run_predict, inputs),
        "scaling_measure": partial(
            call_main, "scaling_measure", "units", photos / "Cat", folder / "lines.jsonl"
        ),
        "out_of_distribution": partial(
            call_main, "out_of_distribution", fashion, art, folder / "out_of_distribution", *odd
        ),
        "lenet_step": partial(
            call_main, "lenet_step", fashion, *one_round, "--batch-sizes", 4, *steps
        ),
        "startup": partial(call_main, "startup", fashion, *one_round),
        "ranks_scaling": partial(
            call_main, "ranks_scaling", fashion, "--pairs", 1, "--batch-size", 64
        ),
        "auto": partial(run_auto, inputs),
        "explain_planted": partial(call_main, "explain_planted", *one_round, *planted),
        "efforts": partial(run_efforts, inputs),
        "budgets": partial(call_main, "budgets", "--models", "compact", "--budgets", 9),
        "decode_photos": partial(
            call_main, "decode_photos", *one_round, "--files", 40, "--data", photos
        ),
        "serve_load": partial(require, "serve_load", "litserve", "fastapi", program="wrk"),
        "shards": run_shards,
        "explain_public": explain_public,
        "lint_public": partial(
            call_main, "lint_public", "--verdicts", HERE / "lint_public_verdicts.csv"
        ),
        "explain_cost": partial(call_main, "explain_cost", *one_round, "--seconds", 0.2),
        "plan_choice": partial(
            call_main, "plan_choice", "--data", fashion, *one_round, "--cases", 1
        ),
        "scaling": partial(run_scaling, inputs),
        "near_duplicate_growth": partial(
            call_main, "near_duplicate_growth", "--counts", 200, "--data", photos
        ),
        "check_planted": partial(
            call_main, "check_planted", photos, "--count", 200, "--wrong", 5, "--fashion", fashion
        ),
        "folds_coverage": partial(call_main, "folds_coverage", "--data", fashion, *folds),
        "card": run_card,
    }


def main() -> int:
    """Run the benchmarks, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="onsight-smoke-") as place:
        os.environ |= THREADS | {"TMPDIR": place, "ONSIGHT_CACHE": f"{place}/cache"}
        inputs = Inputs(Path(place))
        inputs.make()
        with contextlib.redirect_stdout(sys.stderr):
            make_image_sets(inputs)
        names = list(make_benchmarks(inputs))
        if unknown := set(only) - set(names):
            parser.error(f"unknown benchmarks: {', '.join(sorted(unknown))}")
        names = [name for name in names if not only or name in only]
        with ProcessPoolExecutor(AT_ONCE, get_context("spawn"), prepare, (place,)) as pool:
            results = [pool.submit(run, name, inputs) for name in names]
            outcomes = [show(*result.result()) for result in as_completed(results)]
    counts = {outcome: outcomes.count(outcome) for outcome in ("ran", "skipped", "failed")}
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    print(f"{counts['ran']} benchmarks ran, {counts['skipped']} skipped{failed}")
    return int(counts["failed"] > 0)


def prepare(place: str) -> None:
    """Redirect a process from RESULTS.md to its own file."""
    import harness

    harness.RESULTS = Path(place) / f"RESULTS-{os.getpid()}.md"


def run(name: str, inputs: Inputs) -> tuple[str, str, str]:
    """Run a benchmark; returns its outcome (ran, skipped or failed), a line, and its output."""
    output = io.StringIO()
    begun = time.perf_counter()
    outcome, reason = "ran", ""
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            make_benchmarks(inputs)[name]()
    except Skipped as skipped:
        outcome, reason = "skipped", f": {skipped}"
    except (Exception, SystemExit):
        outcome = "failed"
        output.write(traceback.format_exc())
    line = f"{name}: {outcome}, {time.perf_counter() - begun:.1f} s{reason}"
    return outcome, line, output.getvalue()


def show(outcome: str, line: str, output: str) -> str:
    """Print a benchmark's line, with its output if it failed; returns its outcome."""
    print(line, f"\n{output}" if outcome == "failed" else "", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
