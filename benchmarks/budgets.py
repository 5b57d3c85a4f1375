"""Does a run with --budget end in time, with a model, whatever the network?

    python benchmarks/budgets.py --budgets 20,60,300

Trains every network of the table below with every budget. Each run is a process, as a user would
type it, timed from outside, from start to end. A refusal (exit code 2) is an answer too: it names
the smallest budget. The last line is JSON. `--runs 10 --models compact --load` answers the question
while another process keeps one core busy.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from harness import Facts, circumstances, table, write_section
from plan_choice import competing_load

LITE = ["--model", "tf_efficientnet_lite0", "--image-size", "224"]
MODELS = {
    "compact": ["--model", "compact"],
    "lite0": LITE,
    "lite0-published": [*LITE, "--pretrained"],
    "resnet50": ["--model", "resnet50", "--image-size", "224"],
    "auto": ["--model", "auto"],
}


def timed_run(data: str, model: str, seconds: int, folder: Path) -> Facts:
    """Run one process; returns its exit code, its seconds, and whether it left a model."""
    command = [sys.executable, "-m", "onsight", "train", data, *MODELS[model]]
    command += ["--budget", f"{seconds}s", "--out", str(folder)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    results = folder / "results.json"
    return {
        "model": model,
        "budget_seconds": seconds,
        "exit_code": done.returncode,
        "process_seconds": round(took, 2),
        "model_file": (folder / "model.safetensors").exists(),
        "accuracy": json.loads(results.read_text())["accuracy"] if results.exists() else None,
        "message": (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else "",
    }


def measure(data: str, model: str, seconds: int, runs: int, folder: Path) -> list[Facts]:
    found = []
    for number in range(runs):
        found.append(timed_run(data, model, seconds, folder / f"{model}-{seconds}-{number}"))
        print(found[-1], file=sys.stderr)
    return found


def make_row(runs: list[Facts]) -> list[str]:
    """A row of the table: the runs of one model with one budget."""
    seconds, times = runs[0]["budget_seconds"], [run["process_seconds"] for run in runs]
    allowed = max(2.0, 0.03 * seconds)
    finished = [run["process_seconds"] for run in runs if run["exit_code"] == 0]
    late = sum(seconds_used > seconds for seconds_used in finished)
    good = sum(0 <= seconds - seconds_used <= allowed for seconds_used in finished)
    refused = sum(run["exit_code"] == 2 for run in runs)
    models = sum(run["exit_code"] == 0 and run["model_file"] for run in runs)
    accuracies = [run["accuracy"] for run in runs if run["accuracy"] is not None]
    spread = f" ({min(times):.1f} to {max(times):.1f})" if len(times) > 1 else ""
    return [
        runs[0]["model"],
        f"{seconds} s",
        f"{statistics.median(times):.1f}{spread}",
        f"{good} of {len(runs)} up to {allowed:.0f} s early, {late} late, {refused} refused",
        f"{models}",
        f"{100 * statistics.median(accuracies):.1f}%" if accuracies else "–",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="demo")
    parser.add_argument("--budgets", default="20,60,300")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--load", action="store_true", help="with another process on one core")
    options = parser.parse_args(arguments)
    budgets = [int(word) for word in options.budgets.split(",")]
    models = options.models.split(",")
    with (
        tempfile.TemporaryDirectory() as folder,
        competing_load() if options.load else nullcontext(),
    ):
        measured = [
            measure(options.data, model, seconds, options.runs, Path(folder))
            for model in models
            for seconds in budgets
        ]
    load = "another process that keeps one core busy"
    machine = f"with {load}" if options.load else "on an otherwise idle machine"
    data = Path(options.data).name
    header = ["model", "budget", "seconds, process start to end", "in time", "models", "accuracy"]
    rows = [make_row(runs) for runs in measured]
    lines = [f"## Time budgets on {data}, {machine}", "", circumstances()]
    name = f"budgets on {data} beside {load if options.load else 'nothing else'}"
    write_section(name, [*lines, "", *table(header, rows)])
    print(json.dumps([run for runs in measured for run in runs]))


if __name__ == "__main__":
    main()
