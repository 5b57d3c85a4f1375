"""What do an effort, a budget, and more of them give, and is what they promise kept?

    python benchmarks/efforts.py DATA [--sets NAME ...] [--times normal quick 30s 60s ...]
        [--beside 0] [--out efforts.jsonl]
    python benchmarks/efforts.py --summary efforts.jsonl [--chart docs/images/budgets.svg]

DATA holds datasets, such as those of effort_sets.py. Each run is a process, timed from start to
end, with an empty cache, beside this many processes that keep a core busy each. Its outcome is
appended to --out at once, and runs already in that file are not repeated. --summary writes a table
into RESULTS.md, with the accuracy of each budget against that of the shorter ones on the same
images; --chart is that of docs/guides/speed.md.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from auto import append_line, encode, hash_source, list_images, read_files, read_lines
from contenders import HERE, describe_failure, read_correct
from harness import Facts, circumstances, run_json, table, write_section
from matplotlib.figure import Figure
from plan_choice import competing_load
from scipy.stats import binomtest

from onsight.tensorfile import read_tensors
from onsight.training.run import read_results

LIMIT_SECONDS = 3600


class Key(NamedTuple):
    """The identity of a run; time: an effort or a budget, beside: the number of busy processes."""

    tree: str
    dataset: str
    time: str
    beside: int


def measure(data: Path, runs: Sequence[Key], out: Path) -> None:
    """Execute the runs that are not in the file yet, and append each outcome to it."""
    done = {Key(*(line[name] for name in Key._fields)) for line in read_lines(out)}
    for run in [run for run in runs if run not in done]:
        read_files(data / run.dataset)
        with ExitStack() as busy, tempfile.TemporaryDirectory() as folder:
            for _ in range(run.beside):
                busy.enter_context(competing_load())
            facts = execute(data / run.dataset, run.time, Path(folder))
        append_line(out, run._asdict() | facts | {"circumstances": circumstances("timm")})
        result = facts["error"] or f"{100 * facts['accuracy']:.2f}% in {facts['seconds']:.1f} s"
        print(f"{run.dataset}, {run.time}, beside {run.beside}: {result}", file=sys.stderr)


def execute(data: Path, limit: str, folder: Path) -> Facts:
    """Train within an effort or a budget, and describe the outcome."""
    out, stderr = folder / "run", folder / "stderr"
    option = "--budget" if limit[0].isdigit() else "--effort"
    command: list[str | Path] = [sys.executable, "-m", "onsight", "train", data]
    command += [option, limit, "--out", out]
    seen: list[float] = []
    watched = threading.Thread(target=watch, args=(out / "model.safetensors", seen))
    watched.start()
    done = run_json(
        *(sys.executable, HERE / "measured_process.py", str(LIMIT_SECONDS), folder / "stdout"),
        *(stderr, *command),
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "ONSIGHT_CACHE": str(folder / "cache"),
        },
    )
    facts = {"seconds": done["seconds"], "peak_bytes": done["peak_bytes"], "error": ""}
    if done["code"] != 0:
        seen.append(0.0)
        return facts | {"error": describe_failure(done["code"], LIMIT_SECONDS, stderr)}
    watched.join()
    results = read_results(out)
    keep = ("accuracy", "accuracy_low", "accuracy_high", "images", "members", "phases")
    return facts | {
        **{name: results.get(name) for name in keep},
        "first_model_seconds": seen[0],
        "correct": encode(read_correct(out / "predictions.csv"), list_images(data)),
        "model_hash": hash_weights(out / "model.safetensors"),
        "said": stderr.read_text(errors="replace"),
    }


def hash_weights(path: Path) -> str:
    """Return a digest of all tensors of a model file, but not of what it says about its run."""
    digest = sha256()
    for name, tensor in sorted(read_tensors(path)[0].items()):
        digest.update(name.encode() + tensor.contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()[:16]


def watch(path: Path, seen: list[float]) -> None:
    """Add the seconds until a file exists; anything added to seen ends it."""
    begun = time.perf_counter()
    while not seen and not path.exists():
        time.sleep(0.1)
    seen.append(time.perf_counter() - begun)


def newest(lines: Sequence[Facts]) -> list[Facts]:
    """Return the newest run of each dataset, time and load in a file, in that order."""
    latest = {
        (line["dataset"], line["beside"], seconds_of(line["time"]), line["time"]): line
        for line in lines
        if not line["error"]
    }
    return [latest[key] for key in sorted(latest)]


def seconds_of(limit: str) -> float:
    """Return the seconds of a budget; 0 for an effort."""
    return float(limit[:-1]) if limit[0].isdigit() else 0.0


def summarize(lines: Sequence[Facts]) -> list[str]:
    """Return a table of the runs, some of which may be of an earlier source than the last."""
    header = ["images", "time", "beside", "seconds", "first model", "accuracy (95%)", "weight 0"]
    header += ["peak memory", "against the best shorter budget"]
    rows = [[*make_row(line), compare(line, lines)] for line in lines]
    head = ["## Efforts and budgets", "", lines[-1]["circumstances"], ""]
    return [*head, *table(header, rows)]


def make_row(line: Facts) -> list[str]:
    useless = sum(row["seconds"] for row in line["members"] or () if not row["weight"])
    low, high = (100 * line[f"accuracy_{end}"] for end in ("low", "high"))
    return [
        line["dataset"],
        line["time"],
        str(line["beside"]),
        f"{line['seconds']:.1f}",
        f"{line['first_model_seconds']:.1f} s",
        f"{100 * line['accuracy']:.1f}% ({low:.1f} to {high:.1f}, n = {line['images']:,})",
        f"{100 * useless / line['seconds']:.0f}%",
        f"{line['peak_bytes'] / 1e9:.1f} GB",
    ]


def compare(line: Facts, lines: Sequence[Facts]) -> str:
    """Images won and lost against the most accurate shorter budget, with the sign test's p."""
    shorter = [
        other
        for other in lines
        if other["dataset"] == line["dataset"]
        and other["beside"] == line["beside"]
        and is_shorter(other["time"], line["time"])
    ]
    if not shorter:
        return "–"
    best = max(shorter, key=lambda other: other["accuracy"])
    pairs = list(zip(line["correct"], best["correct"], strict=True))
    won, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
    p = binomtest(won, won + lost).pvalue if won + lost else 1.0
    return f"{won} won, {lost} lost against {best['time']} (p = {p:.2g})"


def is_shorter(one: str, other: str) -> bool:
    """Whether both are budgets, and the first is the shorter one."""
    return 0 < seconds_of(one) < seconds_of(other)


def draw(lines: Sequence[Facts], place: Path) -> None:
    """Draw the accuracy of each dataset, with its 95% interval, against the budget, as SVG."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "efforts", "font.size": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for dataset in sorted({line["dataset"] for line in lines}):
            budgets = {
                seconds_of(line["time"]): line
                for line in lines
                if line["dataset"] == dataset and seconds_of(line["time"]) and not line["beside"]
            }
            if len(budgets) < 2:
                continue
            seconds = sorted(budgets)
            rows = [budgets[second] for second in seconds]
            label = f"{dataset} (n = {rows[-1]['images']:,})"
            low, high = ([100 * row[f"accuracy_{end}"] for row in rows] for end in ("low", "high"))
            axes.plot(seconds, [100 * row["accuracy"] for row in rows], "o-", label=label)
            axes.fill_between(seconds, low, high, alpha=0.15)
        ticks = sorted({seconds_of(line["time"]) for line in lines} - {0.0})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axes.set_xlabel("--budget, in seconds")
        axes.set_ylabel("% correct")
        axes.grid(alpha=0.3)
        if axes.get_lines():
            axes.legend(loc="lower right", frameon=False)
        figure.savefig(place, format="svg", metadata={"Date": None})


def list_runs(sets: Sequence[str], times: Sequence[str], beside: int) -> Iterator[Key]:
    tree = hash_source()
    for limit, dataset in product(times, sets):
        yield Key(tree, dataset, limit, beside)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", metavar="DATA")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="default: all in DATA")
    parser.add_argument(
        "--times", nargs="+", default=["normal"], help="efforts, and budgets like 30s"
    )
    parser.add_argument(
        "--beside", type=int, default=0, help="processes that keep a core busy each"
    )
    parser.add_argument("--out", type=Path, default=Path("efforts.jsonl"))
    parser.add_argument("--summary", type=Path, help="a file of such lines; nothing is run")
    parser.add_argument("--chart", type=Path, help="an SVG file to draw the summary's budgets into")
    options = parser.parse_args(arguments)
    if options.summary:
        lines = newest(read_lines(options.summary))
        if options.chart:
            draw(lines, options.chart)
        return write_section("efforts", summarize(lines))
    if options.data is None:
        parser.error("DATA or --summary is needed")
    sets = options.sets or sorted(path.name for path in options.data.iterdir() if path.is_dir())
    return measure(options.data, list(list_runs(sets, options.times, options.beside)), options.out)


if __name__ == "__main__":
    main()
