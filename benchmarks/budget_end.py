"""Does a run with --budget end in time while another process keeps one core busy?

    python benchmarks/budget_end.py --budgets 30,60,300 --runs 10

Each run is `onsight train fashion-mnist --budget N` as a user would type it, timed from outside,
from process start to process end.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import circumstances, table, write_section
from plan_choice import competing_load

from onsight.training.run import read_results


def timed_run(data, seconds, out):
    command = [sys.executable, "-m", "onsight", "train", data]
    command += ["--budget", f"{seconds}s", "--out", out]
    begun = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return time.perf_counter() - begun, read_results(out)["accuracy"]


def measure(data, seconds, runs, folder):
    ends, accuracies = [], []
    for number in range(runs):
        took, accuracy = timed_run(data, seconds, folder / f"{seconds}-{number}")
        print(f"{seconds} s, run {number + 1}: {took:.1f} s, {accuracy:.4f}", file=sys.stderr)
        ends.append(took)
        accuracies.append(accuracy)
    allowed = max(2.0, 0.03 * seconds)
    good = sum(abs(took - seconds) <= allowed for took in ends)
    spread = f"{min(ends):.1f} to {max(ends):.1f}"
    return [
        f"{seconds} s",
        f"{statistics.median(ends):.1f} ({spread})",
        f"{good} of {runs} within {allowed:.0f} s",
        f"{100 * statistics.median(accuracies):.1f}%",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--budgets", default="30,60,300")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--idle", action="store_true", help="without the competing process")
    options = parser.parse_args()
    budgets = [int(word) for word in options.budgets.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(options.data, seconds, options.runs, Path(folder)) for seconds in budgets]
        if options.idle:
            rows = [measure(*one) for one in arguments]
        else:
            with competing_load():
                rows = [measure(*one) for one in arguments]
    beside = "nothing else" if options.idle else "another process that keeps one core busy"
    header = ["budget", "seconds, process start to end", "in time", "median test accuracy"]
    title = f"## Time budgets on Fashion-MNIST, beside {beside}"
    lines = [title, "", circumstances(), "", *table(header, rows)]
    write_section(f"budget beside {beside}", lines)


if __name__ == "__main__":
    main()
