"""Does Onsight keep its promises under any weather? (docs/understand/promises.md)

    python soak/weather.py --rounds 200 --seed 1 --folder FOLDER

Each round draws its weather from its number: busy cores, the processor's instructions, threads, the
cache and the commands that filled it, memory, disk, language, time zone, the spelling of paths, the
order of files, kills. It trains by a command as users type it, and compares the run with one of the
same command in fair weather. Rounds are appended to FOLDER/rounds.jsonl, and those that have passed
are not repeated. `--rounds 1 --seed N` repeats round N alone.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from onsight.tensorfile import DamagedFile, read_tensors
from onsight.untrusted import read_csv

ONSIGHT = str(Path(sys.executable).with_name("onsight"))
HOOKS = Path(__file__).with_name("audited")

COMMANDS = {
    "steps": "--model linear --epochs 3 --batch-size 16 --checkpoint-seconds 0 --folds 1",
    "folds": "--model linear --epochs 1 --batch-size 16 --checkpoint-seconds 0 --folds 3",
    "default folds": "--model lenet --epochs 2 --image-size 28",
    "head": "--model tf_efficientnet_lite0 --freeze --image-size 32 --folds 1",
    "auto": "--model auto --image-size 32 --epochs 1 --folds 1 --train-images 80",
    "budget": "--model linear --budget 20s",
}
EARLIER = {
    "": "",
    "check": "check {data} --quick --out {other}",
    "check labels": "check {data} --out {other}",
    "explain": "explain {data} --quick",
    "other size": "train {data} --out {other} --model linear --epochs 1 --image-size 16",
    "other seed": "train {data} --out {other} --model linear --epochs 1 --seed 7 --folds 1",
    "together": "train {data} --out {other} --epochs 1 --model linear"
    " --split-near-duplicates together",
}
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "own": {},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "sse": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
BUDGET_SECONDS = 20.0
# Keeps a core busy until the process that started it is gone.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"
LATE_SECONDS = 0.5  # a run that ends later than this must say so
EXIT_SECONDS = 1.5  # for the interpreter to end, which no program sees of itself


@dataclass(frozen=True)
class Weather:
    """What surrounds a run, and which command it is."""

    seed: int
    command: str  # a name of COMMANDS
    instructions: str  # a name of INSTRUCTIONS, the same as in fair weather
    threads: int  # the same as in fair weather
    busy: int = 0  # processes that keep a core busy
    earlier: str = ""  # a name of EARLIER: what ran before with the same cache
    cache: str = "ONSIGHT_CACHE"  # which variable names the folder of the cache
    language: str = "C.UTF-8"
    zone: str = "UTC"
    hash_seed: int = 0
    spelling: str = "absolute"  # of the path to the images
    shuffles_files: bool = False  # whether files are created in another order, at other times
    decode_gigabytes: str = ""
    disk_megabytes: int = 0  # of a disk that is then found to be too small, if it is; 0: no limit
    kills: tuple[float, ...] = ()  # seconds, each counted from when the run folder appears


def draw(seed: int) -> Weather:
    """Draw the weather of a round."""
    drawn = random.Random(seed)
    command = drawn.choice([*COMMANDS, "steps", "folds"])
    kills = [drawn.uniform(0, 1.5) for _ in range(drawn.choice([0, 0, 1, 2]))]
    return Weather(
        seed=seed,
        command=command,
        instructions=drawn.choice([*INSTRUCTIONS]),
        threads=drawn.choice([1, 1, 2]),
        busy=drawn.choice([0, 1, 2]),
        earlier=drawn.choice(["", "", *EARLIER]),
        cache=drawn.choice(["ONSIGHT_CACHE", "XDG_CACHE_HOME"]),
        language=drawn.choice(["C", "C.UTF-8", "POSIX", "tr_TR.UTF-8", "de_DE@euro"]),
        zone=drawn.choice(["UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati"]),
        hash_seed=drawn.randrange(1000),
        spelling=drawn.choice(["absolute", "relative", "symbolic", "indirect"]),
        shuffles_files=drawn.random() < 0.5,
        decode_gigabytes=drawn.choice(["", "0.01"]),
        disk_megabytes=drawn.choice([0, 0, 0, 1, 2, 8]),
        kills=() if command == "budget" else tuple(kills),
    )


def fair(weather: Weather) -> Weather:
    """Return fair weather for the same command."""
    return Weather(0, weather.command, weather.instructions, weather.threads)


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    folder: Path
    output: str
    code: int
    seconds: float
    connections: str = ""  # addresses beyond this machine


def make_data(folder: Path, order: random.Random | None) -> Path:
    """Make images of two classes: some copies and near-duplicates, a few that cannot be used."""
    numbers = np.random.default_rng(0)
    files: dict[str, Image.Image | bytes] = {
        "notes.txt": b"not an image",
        "a/empty.jpg": b"",
        "b/broken.png": b"\x89PNG\r\n\x1a\n and no more",
    }
    for number in range(96):
        name = f"{'ab'[number % 2]}/{number:03d}.png"
        pixels = numbers.integers(0, 255, (5, 5, 3), np.uint8)
        pixels[:, 2 if number % 2 else 0] //= 3
        image = Image.fromarray(pixels).resize((24, 24), Image.Resampling.BILINEAR)
        files[name] = image
        if number % 12 == 0:
            files[name.replace(".png", "-near.png")] = image.resize((30, 30))
        if number % 30 == 0:
            files[name.replace(".png", "-same.png")] = image
    names = sorted(files)
    if order:
        order.shuffle(names)
    for name in names:
        path, content = folder / name, files[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.save(path)
        if order:
            os.utime(path, (moment := order.randrange(2**31), moment))
    return folder


def fingerprint(folder: Path) -> str:
    """Return a digest of all files in a folder: names, contents, times and permissions."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        digest.update(repr((str(path), facts.st_mtime_ns, facts.st_mode)).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def find_faults(
    weather: Weather, expected: Finished, run: Finished, data: Path, before: str
) -> list[str]:
    """Return a sentence for each promise that a run has not kept.

    before: the fingerprint of the images before the run.
    """
    if weather.command == "budget" and run.code == 2 and "is too short: " in run.output:
        return []  # a busy machine spends it on starting, and the run is refused before training
    if run.code:
        return [f"exit code {run.code}: {run.output[-2000:]}"]
    checks: list[list[str]] = [
        find_unlisted(run.folder, data),
        find_leftovers(run.folder),
        [f"connected to {address}" for address in run.connections.split("\n") if address],
        ["a file of the user was changed"] if fingerprint(data) != before else [],
    ]
    if weather.command == "budget":
        checks.append(find_late(run, BUDGET_SECONDS))
    else:
        checks.append(find_differences(expected.folder, run.folder))
    return [fault for check in checks for fault in check]


def find_differences(expected: Path, folder: Path) -> list[str]:
    """Compare weights, predictions and problems; the facts of the model include the split."""
    faults = []
    try:
        (old, old_facts), (new, new_facts) = (
            read_tensors(path / "model.safetensors") for path in (expected, folder)
        )
    except DamagedFile as error:
        return [str(error)]
    if old.keys() != new.keys():
        faults.append("the model has other tensors")
    for name in old.keys() & new.keys():
        if old[name].shape != new[name].shape or not _has_same_bits(old[name], new[name]):
            faults.append(f"other weights: {name}")
    if _data_key(old_facts) != _data_key(new_facts):
        faults.append("other images or another split")
    for name in ("predictions.csv", "problems.csv"):
        lines = [sorted((path / name).read_text().splitlines()) for path in (expected, folder)]
        if lines[0] != lines[1]:
            faults.append(f"another {name}")
    return faults


def find_unlisted(folder: Path, data: Path) -> list[str]:
    """Compare the images that are used or listed with the files that exist."""
    used = json.loads((folder / "results.json").read_text())["used"]
    listed = {cells[0] for _, cells in list(read_csv(folder / "problems.csv"))[1:]}
    files = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    if used + len(listed & files) == len(files) and listed <= files:
        return []
    return [f"{used} images used and {len(listed)} listed, but there are {len(files)} files"]


def find_leftovers(folder: Path) -> list[str]:
    """Find temporary files."""
    return [f"left behind: {path.name}" for path in folder.rglob("*") if path.suffix == ".tmp"]


def find_late(run: Finished, budget_seconds: float) -> list[str]:
    """Return a fault if a run with a budget ended late and did not say so."""
    late = run.seconds - budget_seconds
    if late <= LATE_SECONDS + EXIT_SECONDS or "budget: the run took" in run.output:
        return []
    return [f"{late:.1f} s late, without a word"]


def _has_same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    both = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return torch.equal(*both)


def _data_key(facts: Mapping[str, object]) -> object:
    provenance = facts.get("provenance", facts)
    return provenance.get("data_key") if isinstance(provenance, Mapping) else None


def train(weather: Weather, place: Path, words: Sequence[str] = ()) -> tuple[Finished, Path, str]:
    """Train in a weather, in a folder that does not exist: the run, its images, their fingerprint.

    words: further arguments.
    """
    place.mkdir(parents=True)
    order = random.Random(weather.seed) if weather.shuffles_files else None
    data = make_data(place / "images", order)
    (place / "link").symlink_to(data)
    spelled = {
        "absolute": str(data),
        "relative": "images",
        "symbolic": "link",
        "indirect": f"../{place.name}/./images/",
    }[weather.spelling]
    before = fingerprint(data)
    with ExitStack() as stack:
        disk = place / "disk"
        disk.mkdir()
        if weather.disk_megabytes:
            stack.enter_context(_small_disk(disk, weather.disk_megabytes))
        stack.enter_context(_busy_cores(weather.busy))
        environment = _environment(weather, disk / "cache", place / "connections")
        if weather.earlier:
            earlier = EARLIER[weather.earlier].format(data=spelled, other=disk / "other")
            _execute([*earlier.split()], place, environment)
            shutil.rmtree(disk / "other", ignore_errors=True)
        settings = f"{COMMANDS[weather.command]} --threads {weather.threads}"
        arguments = ["train", spelled, "--out", "disk/run", *settings.split(), *words]
        run, kills = disk / "run", list(weather.kills)
        output, is_small = "", bool(weather.disk_megabytes)
        for _ in range(10):
            started = time.monotonic()
            again = ["--resume"] if (run / "config.toml").exists() else []
            kill = kills.pop() if kills else None
            code, said = _execute([*arguments, *again], place, environment, kill, run)
            seconds = time.monotonic() - started
            output += said
            if code == 1 and is_small and "no space left" in said:
                if find_leftovers(run):
                    output += "a full disk has left temporary files"
                    break
                is_small = False
                subprocess.run(["mount", "-o", "remount,size=500m", str(disk)], check=True)
            elif code != -signal.SIGKILL:
                break
        if run.exists():
            shutil.copytree(run, place / "run")
        connections = place / "connections"
        addresses = connections.read_text() if connections.exists() else ""
    return Finished(place / "run", output, code, seconds, addresses), data, before


def _environment(weather: Weather, cache: Path, connections: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    chosen = {
        "PYTHONPATH": str(HOOKS),
        "WEATHER_CONNECTIONS": str(connections),
        "LC_ALL": weather.language,
        "TZ": weather.zone,
        "PYTHONHASHSEED": str(weather.hash_seed),
        weather.cache: str(cache),
    }
    if weather.decode_gigabytes:
        chosen["ONSIGHT_DECODE_GIGABYTES"] = weather.decode_gigabytes
    return {**kept, **chosen, **INSTRUCTIONS[weather.instructions]}


def _execute(
    words: list[str],
    place: Path,
    environment: dict[str, str],
    kill_seconds: float | None = None,
    run: Path | None = None,
) -> tuple[int, str]:
    """Run a command to its end, or kill it so long after its run folder appears."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            [ONSIGHT, *words],
            cwd=place,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        if kill_seconds is not None and run is not None:
            is_resumed = "--resume" in words
            while process.poll() is None and not is_resumed and not run.exists():
                time.sleep(0.01)
            try:
                process.wait(kill_seconds + 4 * is_resumed)
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait(1800)
        file.seek(0)
        return code, file.read().decode(errors="replace")


@contextmanager
def _busy_cores(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def _small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A small disk in memory; without permission to mount one, the disk is as large as it is."""
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    is_mounted = subprocess.run(["mount", *options], check=False, capture_output=True).returncode
    try:
        yield
    finally:
        if is_mounted == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def run_round(
    weather: Weather, folder: Path, reference: Callable[[Weather], Finished]
) -> list[str]:
    """Return what a round finds wrong, and remove its files if that is nothing."""
    place = folder / f"round-{weather.seed}"
    shutil.rmtree(place, ignore_errors=True)
    # A run with a budget is compared with nothing, because its decisions depend on the clock.
    is_budgeted = weather.command == "budget"
    expected = Finished(place, "", 0, 0.0) if is_budgeted else reference(fair(weather))
    run, data, before = train(weather, place)
    faults = find_faults(weather, expected, run, data, before)
    if not faults:
        shutil.rmtree(place)
    return faults


def keep_references(folder: Path) -> Callable[[Weather], Finished]:
    """Return a function that trains once for each fair weather, in folders that are kept."""

    def reference(weather: Weather) -> Finished:
        facts = f"{weather.command}-{weather.instructions}-{weather.threads}".replace(" ", "-")
        place, ended = folder / f"fair-{facts}", folder / f"fair-{facts}.ended"
        if not ended.exists():
            shutil.rmtree(place, ignore_errors=True)
            run, _, _ = train(weather, place)
            if run.code:
                raise RuntimeError(f"not even in fair weather: {run.output}")
            ended.touch()
        return Finished(place / "run", "", 0, 0.0)

    return reference


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; the exit code is 1 if any of them fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "weather"))
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "rounds.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    passed = {row["seed"] for row in map(json.loads, lines) if not row["faults"]}
    reference, failures = keep_references(folder), 0
    seeds = range(options.seed, options.seed + options.rounds)
    for seed in [seed for seed in seeds if seed not in passed or options.rounds == 1]:
        weather, started = draw(seed), time.monotonic()
        faults = run_round(weather, folder, reference)
        row = {**asdict(weather), "seconds": time.monotonic() - started, "faults": faults}
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"round {seed}: {weather.command}, {row['seconds']:.0f} s: {faults or 'kept'}")
        if faults:
            print(f"  {weather}\n  again: {sys.executable} {__file__} --rounds 1 --seed {seed}")
        failures += bool(faults)
    print(f"{len(seeds)} rounds, {failures} of them failed; see {log}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
