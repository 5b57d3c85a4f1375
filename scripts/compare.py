"""Compare the behaviour of this working tree with that of a baseline commit.

    python scripts/compare.py             the quick tier: some minutes
    python scripts/compare.py --full      every scenario
    python scripts/compare.py --only NAME...
    python scripts/compare.py --prove     plant changes in behaviour; each must be reported
    python scripts/compare.py --reworded  texts may differ in words, but not in numbers

Both run the same commands on the same inputs (scripts/comparison/scenarios.py) with the packages
of this Python. comparison/baseline.txt names the commit. comparison/renames.toml lists what was
renamed on purpose since then. comparison/recording.py lists what is ignored: times, paths, versions
and machine. The records of the baseline are kept in .compare/ until the commit, scenarios, inputs,
packages or processor change. The exit code is 1 if anything differs; .compare/differences.json has
all differences.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "scripts" / "comparison"
WORK = ROOT / ".compare"
SOURCE_ROOTS = (  # of a tree: what must be on the path to import its packages
    "src",
    "packages/onsight-explain/src",
    "packages/onsight-lint/src",
)
SHOWN = 12  # differences per scenario on the console

sys.path.insert(0, str(PARTS))
from planted_changes import PLANTED_CHANGES  # noqa: E402
from scenarios import SCENARIOS  # noqa: E402

Record = dict[str, object]
Difference = tuple[str, object, object]
MISSING = "(missing)"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="every scenario")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenarios")
    parser.add_argument("--prove", action="store_true", help="plant changes; each must be reported")
    parser.add_argument("--reworded", action="store_true", help="compare only the numbers in texts")
    options = parser.parse_args()
    names = [scenario.name for scenario in SCENARIOS if options.full or scenario.is_quick]
    if options.prove:
        names = sorted({change.scenario for change in PLANTED_CHANGES})
    names = options.only or names
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        parser.error(f"unknown scenarios: {', '.join(sorted(unknown))}")

    commit = (PARTS / "baseline.txt").read_text().strip()
    inputs = prepare_inputs()
    baseline = extract_commit(commit)
    kept = WORK / "records" / cache_key(commit, inputs)
    kept.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not (kept / f"{name}.json").exists()]
    renames = tomllib.loads((PARTS / "renames.toml").read_text())
    old_flags = {new: old for old, new in renames["flags"].items()}
    runs = [start_runner(baseline, inputs, WORK / "runs" / "baseline", missing, old_flags)]
    if not options.prove:
        runs.append(start_runner(ROOT, inputs, WORK / "runs" / "working-tree", names))
    for process in runs:
        if process.wait():
            raise SystemExit("a runner failed; see above")
    for name in missing:
        shutil.copy(WORK / "runs" / "baseline" / f"{name}.json", kept)
    check_exit_codes(kept, names)
    if options.prove:
        return prove(kept, inputs, names)
    differences = compare_records(names, kept, WORK / "runs" / "working-tree")
    if options.reworded:
        reworded = {
            name: [row for row in rows if is_reworded(*row[1:])]
            for name, rows in differences.items()
        }
        (WORK / "reworded.json").write_text(json.dumps(reworded, indent=1))
        print(f"{sum(map(len, reworded.values()))} texts were reworded: {WORK.name}/reworded.json")
        differences = {
            name: [row for row in rows if not is_reworded(*row[1:])]
            for name, rows in differences.items()
        }
    (WORK / "differences.json").write_text(json.dumps(differences, indent=1))
    show(differences, commit)
    return int(any(differences.values()))


def prepare_inputs() -> Path:
    """Make the inputs once, in a fixed folder, because commands print their path."""
    script = PARTS / "inputs.py"
    folder = WORK / f"inputs-{hashlib.sha256(script.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        from inputs import make_inputs

        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make_inputs(unfinished)
        unfinished.rename(folder)
    return folder


def extract_commit(commit: str) -> Path:
    """Extract a commit's files beside the working tree."""
    folder = WORK / "trees" / commit
    if not folder.exists():
        content = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
        ).stdout
        unfinished = folder.with_suffix(".unfinished")
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    return folder


def cache_key(commit: str, inputs: Path) -> str:
    """A hash of everything that the baseline's records depend on."""
    digest = hashlib.sha256(f"{commit} {inputs.name} {platform.processor()}".encode())
    for path in sorted(PARTS.glob("*.py")):
        if path.name != "planted_changes.py":
            digest.update(path.read_bytes())
    for line in sorted(f"{package.name} {package.version}" for package in distributions()):
        digest.update(line.encode())
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        digest.update("".join(line for line in file if "MHz" not in line).encode())
    return digest.hexdigest()[:16]


def start_runner(
    tree: Path,
    inputs: Path,
    folder: Path,
    names: list[str],
    flags: dict[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start running scenarios with a tree's sources; PYTHONPATH also reaches child processes.

    flags: this tree's names of flags that differ from those in the scenarios' commands.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    roots = os.pathsep.join(str(tree / root) for root in SOURCE_ROOTS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ONSIGHT_")}
    environment |= {"PYTHONPATH": roots, "COLUMNS": "100", "TZ": "UTC", "OMP_NUM_THREADS": "2"}
    environment["ONSIGHT_COMPARE_FLAGS"] = json.dumps(flags or {})
    command = [sys.executable, *map(str, (PARTS / "runner.py", tree, inputs, folder)), *names]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


def check_exit_codes(baseline: Path, names: list[str]) -> None:
    """Reject scenarios that fail in the baseline, because they would compare nothing."""
    for scenario in SCENARIOS:
        if scenario.name not in names:
            continue
        record = json.loads((baseline / f"{scenario.name}.json").read_text(encoding="utf-8"))
        for number, step in enumerate(scenario.steps):
            code = record[f"step {number}: exit code"]
            if code != ("killed" if step.kill_when else step.exit_code):
                raise SystemExit(
                    f"{scenario.name}: step {number} ended with {code} in the baseline"
                )


def compare_records(names: list[str], baseline: Path, folder: Path) -> dict[str, list[Difference]]:
    """The differences of every scenario: (fact, value in the baseline, value in the tree)."""
    tables = tomllib.loads((PARTS / "renames.toml").read_text())
    renames = tables["words"] | tables["flags"]
    differences = {}
    for name in names:
        expected = rename((baseline / f"{name}.json").read_text(encoding="utf-8"), renames)
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        differences[name] = list(compare(rename_keys(json.loads(expected), tables["keys"]), found))
    return differences


def rename_keys(value: object, renames: dict[str, str]) -> object:
    """Replace keys of nested JSON objects."""
    if isinstance(value, dict):
        return {renames.get(key, key): rename_keys(item, renames) for key, item in value.items()}
    if isinstance(value, list):
        return [rename_keys(item, renames) for item in value]
    return value


def rename(text: str, renames: dict[str, str]) -> str:
    """Replace whole words."""
    for old, new in renames.items():
        text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new.replace("\\", r"\\"), text)
    return text


def compare(expected: object, found: object, place: str = "") -> Iterator[Difference]:
    """Walk through two JSON values side by side."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            where = f"{place} > {key}" if place else key
            yield from compare(expected.get(key, MISSING), found.get(key, MISSING), where)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield from compare(*pair, f"{place}[{number}]")
    elif expected != found:
        yield place, expected, found


def is_reworded(expected: object, found: object) -> bool:
    """Whether two texts, or two lists of lines, contain the same numbers in the same order."""
    texts = []
    for value in (expected, found):
        lines = value if isinstance(value, list) else [value]
        if not all(isinstance(line, str) for line in lines):
            return False
        texts.append(" ".join(map(str, lines)))
    numbers = [re.findall(r"\d+(?:[.,]\d+)*", text) for text in texts]
    return numbers[0] == numbers[1] and all(" " in text.strip() for text in texts)


def show(differences: dict[str, list[Difference]], commit: str) -> None:
    """Print the differences, shortened."""
    for name, rows in differences.items():
        print(f"{'DIFFERENT' if rows else 'identical'}  {name}")
        for place, expected, found in rows[:SHOWN]:
            print(f"    {place}\n      - {str(expected)[:300]}\n      + {str(found)[:300]}")
        if len(rows) > SHOWN:
            print(f"    and {len(rows) - SHOWN} more in {WORK.name}/differences.json")
    changed = sum(map(bool, differences.values()))
    print(f"{len(differences)} scenarios against {commit[:9]}: {changed} differ")


def prove(kept: Path, inputs: Path, names: list[str]) -> int:
    """Plant each change in a copy of the working tree; its scenario must report it."""
    unreported = 0
    for number, change in enumerate(PLANTED_CHANGES):
        if change.scenario not in names:
            continue
        tree = WORK / "planted" / str(number)
        shutil.rmtree(tree, ignore_errors=True)
        for root in SOURCE_ROOTS:
            shutil.copytree(ROOT / root, tree / root)
        path = tree / change.file
        text = path.read_text(encoding="utf-8")
        assert text.count(change.text) == 1, f"{change.file}: {change.text}"
        path.write_text(text.replace(change.text, change.replacement), encoding="utf-8")
        folder = WORK / "runs" / "planted"
        if start_runner(tree, inputs, folder, [change.scenario]).wait():
            raise SystemExit("a runner failed; see above")
        rows = compare_records([change.scenario], kept, folder)[change.scenario]
        unreported += not rows
        result = f"reported, {len(rows)} facts, first {rows[0][0]}" if rows else "NOT REPORTED"
        print(f"{change.file}: {change.scenario}: {result}", flush=True)
    return int(unreported > 0)


if __name__ == "__main__":
    sys.exit(main())
