"""Check everything that depends on a GPU, on a real one or else on the simulated device.

    python scripts/gpu_check.py [--out gpu-check] [--short] [--device cuda:0] [--wheels FOLDER]
    python scripts/gpu_check.py --collect-wheels FOLDER [--for-python 3.12] [PACKAGE ...]

Needs Python 3.11 or later, torch 2.9 or later and Onsight's other requirements; Onsight itself is
used from this checkout. --wheels: install missing requirements from these files, without network,
into a separate environment that uses the installed torch. --collect-wheels: download such files
beforehand, by default for all requirements except torch and what torchvision needs.

Each part runs in its own process with a time limit. As soon as it ends, a line is added to
results.jsonl and its output to log.txt. results.md has the table of all parts. The exit code is 1
if a part failed, 2 if something needed is missing. --short: a few steps of each part.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS_SCRIPT = ROOT / "scripts" / "gpu_check_parts.py"
SIMULATED_DEVICE = "simulated:1"  # the first simulated device stays the current one
TOTAL_SECONDS = 500.0  # for all parts: under nine minutes with the preparation
ENVIRONMENT_PREFIX = "gpu-check-environment-"
# The machine must provide torch and torchvision, with what that needs.
PROVIDED = {"torch", "torchvision", "numpy", "pillow"}
PLATFORMS = (  # pip accepts wheels for older platforms only if they are named
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)

RECIPES = ("dogs-vs-cats", "cifar10-lenet", "cifar10-quick", "data-parallel", "fast")
PLANTED_SCRIPTS = ("pageable_copies", "sync_in_loop")
TESTS = ("steps", "faults", "training", "commands", "graphed", "ranks")
SHORT_TESTS = ("steps", "faults")  # the other parts cover the rest in a few steps
BENCHMARKS = {
    "card": ("benchmarks/card.py", "--seconds", "0.3", "--batch-sizes", "4", "64", "1024"),
    "gpu": ("benchmarks/gpu.py", "--smoke"),
}


@dataclass(frozen=True)
class Part:
    """A check: the arguments of the Python process that runs it, and its time limit.

    skip_reason: why it does not apply to this device, if it does not.
    """

    name: str
    arguments: tuple[str, ...]
    limit_seconds: float
    skip_reason: str = ""


@dataclass(frozen=True)
class Result:
    """The result of a part. status: ok, failed, timed out or skipped."""

    part: str
    status: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_failure(self) -> bool:
        return self.status in ("failed", "timed out")


def main() -> int:
    options = parse_options()
    if options.collect_wheels:
        return collect_wheels(options.collect_wheels, options.for_python, options.packages)
    missing = missing_requirements()
    if missing and options.wheels and not Path(sys.prefix).name.startswith(ENVIRONMENT_PREFIX):
        return run_with_wheels(options.wheels, missing)
    if missing:
        print(
            f"{sys.executable} lacks {', '.join(missing)}\nInstall them, or collect their wheels "
            "on a machine with network access (--collect-wheels FOLDER) and pass --wheels FOLDER "
            "here",
            file=sys.stderr,
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        environment = environment_of_parts(Path(scratch))
        machine = describe_machine(options.device, environment)
        if machine is None:
            return 2
        parts = make_parts(machine["device"], options.short)
        if unknown := set(options.only) - {part.name for part in parts}:
            names = ", ".join(part.name for part in parts)
            print(f"unknown parts: {', '.join(unknown)}; known: {names}", file=sys.stderr)
            return 2
        parts = [part for part in parts if not options.only or part.name in options.only]
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        results = Runner(machine, options.out, Path(scratch), environment).run(parts)
    table = markdown(machine, results)
    print(table)
    write_durably(options.out / "results.md", table)
    return int(any(result.is_failure for result in results))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder for results")
    parser.add_argument("--short", action="store_true", help="a few steps of each part")
    parser.add_argument("--device", default="auto", help="such as cuda:0, which must exist")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="only these")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER")
    parser.add_argument("--collect-wheels", type=Path, metavar="FOLDER")
    parser.add_argument("--for-python", default="3.12", metavar="VERSION")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    return parser.parse_args()


def make_parts(device: str, is_short: bool) -> list[Part]:
    is_simulated = device == SIMULATED_DEVICE
    sizes = ("--short",) if is_short or is_simulated else ()

    def own(what: str, *arguments: str, limit_seconds: float) -> Part:
        name = " ".join((what, *arguments))
        command = (str(PARTS_SCRIPT), what, *arguments, "--device", device, *sizes)
        return Part(name, command, limit_seconds)

    def test(name: str, *arguments: str) -> Part:
        pytest = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs")
        # A deprecation warning of another version of torch is not a failure.
        options = ("-o", "python_files=check_*.py", "-W", "default")
        return Part(name, (*pytest, *options, *arguments), limit_seconds=150)

    files = {name: f"tests/simulated/check_{name}.py" for name in TESTS}
    if is_short:
        tests = [test("tests", *(files[name] for name in SHORT_TESTS))]
    else:
        tests = [test(f"tests {name}", "-m", "", file) for name, file in files.items()]
    return [
        *tests,
        own("graph", limit_seconds=90),
        own("memory", limit_seconds=90),
        *(own("recipe", name, limit_seconds=120) for name in RECIPES),
        *(own("explain", name, limit_seconds=120) for name in PLANTED_SCRIPTS),
        own("compare", limit_seconds=90),
        *(
            Part(f"benchmark {name}", command, 150, "needs a GPU" if is_simulated else "")
            for name, command in BENCHMARKS.items()
        ),
    ]


class Runner:
    """Runs the parts, one at a time on a GPU, whose speed they measure; otherwise two."""

    def __init__(
        self, machine: dict[str, str], out: Path, scratch: Path, environment: dict[str, str]
    ) -> None:
        self.machine, self.out, self.scratch = machine, out, scratch
        self.environment = environment | {"ONSIGHT_TEST_DEVICE": machine["device"]}
        if machine["device"] == SIMULATED_DEVICE:  # two parts at once, with small tensors
            self.environment["OMP_NUM_THREADS"] = "1"
        self.deadline = time.monotonic() + TOTAL_SECONDS
        self.lock = Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        for name in ("results.jsonl", "log.txt"):
            write_durably(out / name, "")

    def run(self, parts: list[Part]) -> list[Result]:
        at_once = 2 if self.machine["device"] == SIMULATED_DEVICE else 1
        pool = ThreadPoolExecutor(at_once)
        try:
            return list(pool.map(self._run_and_record, parts))
        finally:  # also when interrupted
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self.running):
                end_group(process)
            pool.shutdown()

    def _run_and_record(self, part: Part) -> Result:
        log = self.scratch / f"{part.name.replace(' ', '-')}.log"
        result = self._run(part, log)
        with self.lock:
            write_durably(self.out / "results.jsonl", json.dumps(asdict(result)) + "\n", "a")
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            write_durably(
                self.out / "log.txt", f"===== {part.name}: {result.status}\n{text}\n", "a"
            )
            reason = f" ({result.reason})" if result.reason else ""
            print(f"{part.name}: {result.status}, {result.seconds:.0f} s{reason}", flush=True)
        return result

    def _run(self, part: Part, log: Path) -> Result:
        if part.skip_reason:
            return Result(part.name, "skipped", 0.0, reason=part.skip_reason)
        begun = time.monotonic()
        limit_seconds = min(part.limit_seconds, self.deadline - begun)
        if limit_seconds <= 0:
            return Result(part.name, "timed out", 0.0, reason="no time was left")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *part.arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running.add(process)
            try:
                code = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            end_group(process)
            self.running.remove(process)
        seconds = round(time.monotonic() - begun, 1)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if code is None:
            return Result(
                part.name, "timed out", seconds, reason=f"not done after {limit_seconds:.0f} s"
            )
        if code:
            tests = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            reason = "; ".join(tests)[:500] or last[:300]
            if code < 0:
                reason = f"ended by signal {-code}: {reason}"
            return Result(part.name, "failed", seconds, figures_in(lines), reason)
        return Result(part.name, "ok", seconds, figures_in(lines))


def figures_in(lines: list[str]) -> dict[str, Any]:
    """Return the figures in a part's last line of JSON, or pytest's counts."""
    for line in reversed(lines):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
        if re.match(r"\d+ (passed|failed|skipped|error).* in [\d.]+s", line):
            return {"tests": line.partition(" in ")[0]}
    return {}


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes that a part has started, even if the part itself has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment_of_parts(scratch: Path) -> dict[str, str]:
    sources = [ROOT / "src", *ROOT.glob("packages/*/src")]
    paths = [*map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "ONSIGHT_CACHE": str(scratch / "cache"),
        "TMPDIR": str(scratch),
        "HF_HUB_OFFLINE": "1",
    }


def describe_machine(device: str, environment: dict[str, str]) -> dict[str, str] | None:
    """The device and versions; None, with the reason on stderr, if there is no such device."""
    command = [sys.executable, str(PARTS_SCRIPT), "describe", "--device", device]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return None if done.returncode else dict(json.loads(done.stdout.splitlines()[-1]))


def markdown(machine: dict[str, str], results: list[Result]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    rows = [["part", "result", "seconds", "figures"], ["---"] * 4]
    for result in results:
        outcome = f"{result.status}: {result.reason}" if result.reason else result.status
        figures = ", ".join(f"{name} {value}" for name, value in result.figures.items())
        rows.append([result.part, outcome, f"{result.seconds:.0f}", figures])
    table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
    return f"{facts}\n\n{table}\n"


def write_durably(path: Path, text: str, mode: str = "w") -> None:
    """Write text and fsync it, in case the machine is lost right afterwards."""
    with path.open(mode, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# requirements and wheels


def requirements() -> list[str]:
    """The requirements of Onsight and of its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    of_tests = [
        requirement
        for requirement in project["dependency-groups"]["dev"]
        if name_of(requirement) in ("pytest", "pytest-timeout")
    ]
    return [*project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"], *of_tests]


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def missing_requirements() -> list[str]:
    """The requirements that are missing from this Python, or installed in an unsuitable version."""
    return [requirement for requirement in requirements() if not is_met(requirement)]


def is_met(requirement: str) -> bool:
    name = name_of(requirement)
    try:
        installed = numbers_of(version(name))
    except PackageNotFoundError:
        return False
    bounds = re.findall(r"(>=|<)([\d.]+)", requirement)
    return all(
        installed >= numbers_of(bound) if sign == ">=" else installed < numbers_of(bound)
        for sign, bound in bounds
    )


def numbers_of(release: str) -> tuple[int, ...]:
    """Return (2, 11, 0) for 2.11.0+cu130."""
    return tuple(int(number) for number in re.findall(r"\d+", release.partition("+")[0]))


def run_with_wheels(wheels: Path, missing: list[str]) -> int:
    """Run this script in an environment with the missing packages, from a folder of wheels."""
    with tempfile.TemporaryDirectory(prefix=ENVIRONMENT_PREFIX) as folder:
        venv.EnvBuilder(symlinks=True).create(folder)
        python = Path(folder, "bin", "python")
        # A .pth file, because an environment made from another one does not see its packages.
        packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        own_packages = next(Path(folder, "lib").glob("python*/site-packages"))
        (own_packages / "beside.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        offline = ["--no-index", "--find-links", str(wheels)]
        if subprocess.run([*pip, *offline, *missing], check=False).returncode:
            print(f"{wheels} does not have all of: {', '.join(missing)}", file=sys.stderr)
            return 2
        return subprocess.run([python, *sys.argv], check=False).returncode


def collect_wheels(folder: Path, for_python: str, packages: list[str]) -> int:
    """Download wheels for x86-64 Linux, in the versions of requirements.lock."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    wanted = set(packages) or set(map(name_of, requirements())) - PROVIDED
    pinned, parents = {}, {}
    for block in re.split(r"\n(?=\w)", lock):
        pin = re.split(r"[\s;]", block, maxsplit=1)[0]
        name = pin.partition("==")[0]
        # Several pins depend on the Python version: take the newest release.
        pinned[name] = name if name in pinned else pin
        parents[name] = set(re.findall(r"#[ ]+(?:via )?([\w.-]+)", block))
    while more := {name for name in pinned if parents[name] & wanted} - wanted - PROVIDED:
        wanted |= more
    command = [sys.executable, "-m", "pip", "download", "--dest", str(folder), "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", for_python]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    chosen = [pinned.get(name, name) for name in sorted(wanted)]
    return subprocess.run([*command, *chosen], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
