"""The child process of `bench.FreshRun`: opens a run and times its step on request."""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from onsight.config import Config
from onsight_explain.process.supervised import Channel, Closed
from onsight_explain.threads import choose_spinning


def main() -> NoReturn:
    """Open the run of a request file and time it. Arguments: the file, the channel's descriptor."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel = Channel.inherited(int(sys.argv[2]))
    choose_spinning()  # must precede the import of torch, as in `onsight train`
    try:
        serve(request["data"], Config.model_validate(request["config"]), channel)
    except Closed:
        os._exit(0)


def serve(data: str, config: Config, channel: Channel) -> NoReturn:
    """Time the run's step with the flags of each message, until the channel is closed."""
    from onsight.explainer.bench import FlagChange, FlagTrial, RunBench
    from onsight.explainer.explain_run import open_run
    from onsight.report.console import SilentReporter
    from onsight_explain.search import TrialFailed

    trials = dict[str, FlagTrial]()
    with open_run(data, config, SilentReporter()) as run:
        bench = RunBench(run.config, run.data)
        channel.send({"ready": True})
        while True:
            message, _ = channel.receive()
            flags = tuple(FlagChange(*field) for field in message["flags"].items())
            trial = trials.setdefault(str(flags), FlagTrial(bench, flags))
            try:
                channel.send({"rate": trial.measure(message["seconds"])})
            except TrialFailed as error:
                channel.send({"problem": str(error)})


if __name__ == "__main__":
    main()
