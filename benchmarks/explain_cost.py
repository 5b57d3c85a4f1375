"""How much does the recorder of `explain` slow down a training loop?

    python benchmarks/explain_cost.py [--rounds 15]

The training step of a LeNet in plain torch, at several batch sizes, with and without the recorder
in turn, in one process. A speed ratio below 1 is the cost of recording.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import circumstances, interleave, paired, table, write_section
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from onsight.models.classic import LeNet
from onsight.text import plural
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.recorder import Recorder
from onsight_explain.tracing.sites import Sites

BATCHES = (4, 32, 128)


class Loop:
    """A tutorial's training loop over images in memory."""

    def __init__(self, batch_size: int, seconds: float) -> None:
        self.seconds = seconds
        self.net, self.criterion = LeNet((3, 32, 32), 10), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.001, momentum=0.9)
        data = TensorDataset(torch.randn(2_048, 3, 32, 32), torch.randint(10, (2_048,)))
        self.loader = DataLoader(data, batch_size, shuffle=True)
        self.running_loss = 0.0

    def rate(self) -> float:
        """Images per second, measured over about this many seconds."""
        begun, seen = time.perf_counter(), 0
        while time.perf_counter() - begun < self.seconds:
            for images, labels in self.loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.net(images.to("cpu")), labels.to("cpu"))
                loss.backward()
                self.optimizer.step()
                self.running_loss += loss.item()
                seen += len(labels)
                if time.perf_counter() - begun > self.seconds:
                    break
        return seen / (time.perf_counter() - begun)

    def recorded_rate(self) -> float:
        """The rate while the recorder watches."""
        sites = Sites(Path(__file__).parent)
        recorder = Recorder(PhaseClock(), sites, 1e9, 10**9, 1, lambda recorder: None)
        recorder.install()
        try:
            return self.rate()
        finally:
            recorder.undo()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    for batch_size in BATCHES:
        loop = Loop(batch_size, options.seconds)
        rates = interleave({"recorded": loop.recorded_rate, "plain": loop.rate}, options.rounds)
        ratio = paired(rates["recorded"], rates["plain"])
        rows.append([str(batch_size), f"{sum(rates['plain']) / options.rounds:,.0f}", str(ratio)])
    header = ["batch", "images/s without the recorder", "with / without"]
    lines = ["## The cost of recording", "", circumstances(), "", *table(header, rows)]
    write_section("explain_cost", [*lines, "", f"{plural(options.threads, 'thread')}."])


if __name__ == "__main__":
    main()
