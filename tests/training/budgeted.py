"""One of several ranks of a run with a budget, each with a clock of its own; run by torchrun."""

import json
import sys
from pathlib import Path

import onsight
from onsight.report.console import SilentReporter
from onsight.training.trainer import Trainer


def main():
    data, folder, *config_files = sys.argv[1:]
    Path(folder).mkdir(exist_ok=True)
    passed = [0.0]
    trainers = []

    def spent():  # a tick per look; the clocks of the other ranks run away
        passed[0] += 0.1
        return passed[0] * (1 + 7 * trainers[0].world.rank if trainers else 1)

    real = Trainer.run

    def run(self):
        trainers.append(self)
        return real(self)

    Trainer.run = run
    fields = {"model": "lenet", "image_size": "16", "batch_size": 16, "threads": 1, "folds": 1}
    fields = {"config_file": config_files[0]} if config_files else {**fields, "budget": "60s"}
    out = Path(folder) / "run"
    onsight.train(data, out=out, spent=spent, reporter=SilentReporter(), **fields)
    (trainer,) = trainers
    facts = {
        "images": trainer.progress.images,
        "best_epoch": trainer.progress.best_epoch,
        "rate": trainer.update.step.optimizer.param_groups[0]["lr"],
        "best_accuracy": trainer.progress.best_accuracy,
        "clock": passed[0],
    }
    (Path(folder) / f"rank-{trainer.world.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
