"""The process that opens a run once more and times its step, in an environment of its own."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from onsight.config import Config
from onsight_explain.process.supervised import Channel, Closed
from onsight_explain.threads import choose_spinning


def main() -> NoReturn:
    """Open what the file named on the command line asks for; a second word is the channel."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel = Channel.inherited(int(sys.argv[2]))
    choose_spinning()  # before torch loads, as `onsight train` does
    try:
        serve(asked["data"], Config.model_validate(asked["config"]), channel)
    except Closed:
        os._exit(0)


def serve(data: str, config: Config, channel: Channel) -> NoReturn:
    """Time the run's step with the flags that are asked for, until the other end is gone."""
    from onsight.explainer.own.bench import FlagTrial, RunBench
    from onsight.explainer.own.changes import FlagChange
    from onsight.explainer.own.opening import opened
    from onsight.report.console import SilentReporter
    from onsight_explain.search import TrialFailed

    trials = dict[str, FlagTrial]()
    with opened(data, config, SilentReporter()) as run:
        bench = RunBench(run.config, run.data)
        channel.send({"ready": True})
        while True:
            message, _ = channel.receive()
            flags = tuple(FlagChange(*one) for one in message["flags"].items())
            trial = trials.setdefault(str(flags), FlagTrial(bench, flags))
            try:
                channel.send({"rate": trial.measure(message["seconds"])})
            except TrialFailed as error:
                channel.send({"problem": str(error)})


if __name__ == "__main__":
    main()
