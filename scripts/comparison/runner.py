"""Run scenarios with one tree's Onsight, and write the results of each as a JSON record.

    python runner.py TREE INPUTS FOLDER NAME...

Onsight is imported once. Every command of a scenario runs in a fork of this process: forks are as
separate as new processes, and save the seconds of importing torch. Started by compare.py.
"""

import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

from recording import read_outputs
from scenarios import SCENARIOS, Scenario, Step

TIMEOUT_SECONDS = 300


def run_scenario(scenario: Scenario, inputs: Path, folder: Path) -> dict[str, object]:
    """Run a scenario in an empty folder; return its record: facts by name."""
    folder.mkdir(parents=True)
    record: dict[str, object] = {}
    for number, step in enumerate(scenario.steps):
        record[f"step {number}: exit code"] = _run_step(step, number, inputs, folder)
    return record | read_outputs(folder, {str(inputs): "<inputs>", str(folder): "<folder>"})


def _run_step(step: Step, number: int, inputs: Path, folder: Path) -> int | str:
    process = os.fork()
    if not process:
        os._exit(_run_in_fork(step, number, inputs, folder))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        is_late = time.monotonic() > deadline
        if is_late or (step.kill_when and (folder / step.kill_when).exists()):
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return "timed out" if is_late else "killed"
        time.sleep(0.01)


def _run_in_fork(step: Step, number: int, inputs: Path, folder: Path) -> int:
    os.setsid()
    os.chdir(folder)
    os.environ["ONSIGHT_CACHE"] = str(folder / ".cache")
    if step.timings:
        os.environ["ONSIGHT_SAVED_TIMINGS"] = step.timings.replace("INPUTS", str(inputs))
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        output = os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, descriptor)
    try:
        if step.code:
            exec(
                compile(step.code, "snippet", "exec"), {"INPUTS": inputs}
            )  # our own, from scenarios
        else:
            old_flags = json.loads(os.environ.get("ONSIGHT_COMPARE_FLAGS", "{}"))
            words = (old_flags.get(word, word) for word in step.command)
            sys.argv = ["onsight", *(word.replace("INPUTS", str(inputs)) for word in words)]
            runpy.run_module("onsight", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    tree, inputs, folder = (Path(word).resolve() for word in sys.argv[1:4])
    import onsight

    for name in onsight.__all__:
        getattr(onsight, name)  # imports what commands need, once
    assert Path(onsight.__file__).is_relative_to(tree), f"{onsight.__file__} is not in {tree}"
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    for name in sys.argv[4:]:
        begun = time.monotonic()
        record = run_scenario(by_name[name], inputs, folder / name.replace(" ", "-"))
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        print(f"{tree.name}: {name}, {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
