"""How close is Onsight's LeNet training to the limit set by its own step, and to its peers?

    python benchmarks/lenet_step.py /usr/share/datasets/fashion-mnist

At each batch size, on files like CIFAR-10's and on PNG files: Onsight through `onsight.train`; its
own step on one constant batch, which is the limit; and each peer with the best settings that a
short search found. Every contender is a fresh process in every round. The settings are kept in
WORK/settings.json for the next time; delete it to search again.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from harness import circumstances, interleave, paired, run_json, table, write_section
from stand_ins import MAKERS
from tuning import Setting, tune

from onsight.hardware.cores import usable_cores

PEERS = ("tensors", "tutorial", "accelerate", "lightning", "fastai", "keras")
TITLES = {
    "tensors": "hand-written, tensors in memory",
    "tutorial": "tutorial loop",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "fastai": "fastai",
    "keras": "Keras",
}
PACKAGES = ("accelerate", "lightning", "fastai", "keras")
TRAINING_PICTURES = 59_000  # fewer than any contender has, so that none begins a second epoch
LEAST_STEPS = 60
FOLDER = Path(__file__).parent / "peers"


class Case:
    """One batch size on one kind of files."""

    def __init__(self, options, kind, batch_size, settings):
        self.options, self.kind, self.batch_size = options, kind, batch_size
        self.data = MAKERS[kind](options.data, options.work)
        self.settings = settings
        self.results: dict[str, list[dict]] = {}
        self.most_steps = TRAINING_PICTURES // batch_size

    def run(self, name, setting, *words):
        """A contender's results; words: further arguments."""
        own = name in ("onsight", "limit")
        cache = ["--cache", self.options.work / "onsight-cache"] if own else []
        script = FOLDER / f"lenet_{name}.py"
        command = [sys.executable, script, self.data, "--kind", self.kind]
        command += ["--batch-size", self.batch_size, *setting.words(), *cache, *words]
        return run_json(*map(str, command), env=setting.environment())

    def first_rate(self, name, setting, *words):
        # The trial ends with the epoch at the latest, as no contender may begin a second one.
        seconds = self.options.tune_seconds
        facts = self.run(name, setting, "--seconds", seconds, *words)
        print(f"  {name}, {setting}: {facts['images_per_second']:,.0f}", file=sys.stderr)
        return facts["images_per_second"]

    def best(self, name):
        """A peer's best setting and first rate, searched for or remembered."""
        key = f"{name} {self.kind} {self.batch_size}"
        if key not in self.settings:
            # Arrays and whole tensors do not go through a loader that workers could help.
            whole = name == "tensors" or (name == "keras" and self.kind == "packed")
            workers = (0,) if whole else (0, 1, 2)
            threads = tuple(sorted({1, usable_cores()}))
            setting, rate = tune(lambda s: self.first_rate(name, s), workers, threads)
            self.settings[key] = {"setting": vars(setting), "rate": rate}
        known = self.settings[key]
        return Setting(**known["setting"]), known["rate"]

    def steps(self, rate):
        wanted = round(rate * self.options.seconds / self.batch_size)
        return max(LEAST_STEPS, min(wanted, self.most_steps))

    def contenders(self):
        """How each is started: its setting, further arguments and first rate."""
        onsight = Setting(usable_cores())
        first = self.run("onsight", onsight, "--seconds", self.options.tune_seconds)
        plan = first["plan"]
        same = Setting(plan["threads"])
        words = ["--precision", plan["precision"]]
        if "memory_format" in plan:
            words += ["--memory-format", plan["memory_format"]]
        found = {
            "onsight": (onsight, [], first["images_per_second"]),
            "limit": (same, words, self.first_rate("limit", same, *words)),
        }
        for name in self.options.peers:
            setting, rate = self.best(name)
            found[name] = (setting, [], rate)
        return found

    def measure(self):
        """Rates of every contender in every round."""
        self.found = self.contenders()
        steps = {name: self.steps(rate) for name, (_, _, rate) in self.found.items()}
        common = min(count for name, count in steps.items() if name != "limit")
        self.loss_at = common

        def timed(name):
            setting, words, _ = self.found[name]
            wanted = ["--steps", steps[name], "--loss-at", common]
            facts = self.run(name, setting, *wanted, *words)
            self.results.setdefault(name, []).append(facts)
            return facts["images_per_second"]

        jobs = {name: lambda name=name: timed(name) for name in self.found}
        self.rates = interleave(jobs, self.options.rounds, warm_up=False)
        return self

    def rows(self):
        ours = self.rates["onsight"]
        order = sorted(self.options.peers, key=lambda name: -statistics.median(self.rates[name]))
        place = [str(self.batch_size), self.kind]
        rows = [[*place, "Onsight", f"{statistics.median(ours):,.0f}", "1", self.loss("onsight")]]
        for name in ("limit", *order):
            title = f"{TITLES[name]} ({self.found[name][0]})" if name in TITLES else "the limit"
            if name == order[0]:
                title = f"best peer: {title}"
            rate = f"{statistics.median(self.rates[name]):,.0f}"
            loss = "" if name == "limit" else self.loss(name)
            rows.append([*place, title, rate, str(paired(ours, self.rates[name])), loss])
        return rows

    def loss(self, name):
        losses = [facts["loss"] for facts in self.results[name]]
        return f"{statistics.median(losses):.2f} at {self.loss_at:,}"


HEADER = [
    "batch",
    "files",
    "contender (its best setting)",
    "images/s",
    "Onsight's rate / its rate, median (low to high)",
    "mean loss before step",
]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of Fashion-MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[4, 32, 64, 512])
    parser.add_argument("--kinds", nargs="+", choices=tuple(MAKERS), default=list(MAKERS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of training per contender")
    parser.add_argument("--tune-seconds", type=float, default=1.5, help="of training per trial")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "onsight-benchmarks"
    )
    return parser.parse_args()


def notes(options):
    return [
        "",
        f"Each contender trained for about {options.seconds:g} s in each of {options.rounds} "
        "rounds, in turn, in its own process; the first tenth of the steps is not counted. The "
        "limit is Onsight's own step on one constant batch. The loop over tensors in memory "
        "decodes PNG files once, as Onsight does; the other peers decode them as they train. Each "
        "loss is the mean over the quarter of the steps before the given step.",
    ]


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    known = options.work / "settings.json"
    settings = json.loads(known.read_text()) if known.exists() else {}
    rows = []
    for kind in options.kinds:
        for batch_size in options.batch_sizes:
            print(f"{kind}, batch {batch_size}", file=sys.stderr)
            rows += Case(options, kind, batch_size, settings).measure().rows()
            known.write_text(json.dumps(settings, indent=1))
    lines = ["## LeNet, step for step", "", circumstances(*PACKAGES), "", *table(HEADER, rows)]
    write_section("lenet_step", lines + notes(options))


if __name__ == "__main__":
    main()
