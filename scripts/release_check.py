"""Build every distribution twice: the bytes must be identical, and the contents equal git's tree.

python scripts/release_check.py [--out dist] [--tag v1.2.3]
Needs `build` and `hatchling` (make release-check). With a tag, the version must be the tag's, and
CHANGELOG.md must have a section for it.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECTS = {
    "onsight": ROOT,
    "onsight-explain": ROOT / "packages" / "onsight-explain",
    "onsight-lint": ROOT / "packages" / "onsight-lint",
    "onsight-run": ROOT / "packages" / "onsight-run",
}


def main() -> None:
    """Build, check and store all distributions; exit with an error that lists all faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--tag", default="")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    faults = unlike_tag(arguments.tag, versions(), read_changelog()) if arguments.tag else []
    for name, project in PROJECTS.items():
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            wheels = [build(project, Path(folder)) for folder in (first, second)]
            faults += [f"{name}: {fault}" for fault in differing(*wheels)]
            faults += [
                f"{name}: {fault}" for fault in unlike_tree(wheels[0], tracked(packed(project)))
            ]
            kept = Path(shutil.copy(wheels[0], out))
        print(f"{kept.name}: sha256 {hashlib.sha256(kept.read_bytes()).hexdigest()}")
    if faults:
        sys.exit("error: " + "\nerror: ".join(faults))
    print(f"all wheels are in {out}; two builds are identical, and the contents equal git's tree")


def versions() -> dict[str, str]:
    """Return the version of every package."""
    found = {}
    for name, project in PROJECTS.items():
        with open(project / "pyproject.toml", "rb") as file:
            found[name] = tomllib.load(file)["project"]["version"]
    return found


def read_changelog() -> str:
    """Return the text of CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def unlike_tag(tag: str, versions: dict[str, str], changelog: str) -> list[str]:
    """Return how versions and changelog disagree with a tag such as v1.2.3."""
    faults = [
        f"{name} has version {version}: the tag must be v{version}, not {tag}"
        for name, version in versions.items()
        if f"v{version}" != tag
    ]
    heading = rf"^## {re.escape(tag.removeprefix('v'))} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, changelog, re.M):
        faults.append(f"CHANGELOG.md has no section '## {tag.removeprefix('v')} (YYYY-MM-DD)'")
    unreleased = re.search(r"^## Unreleased$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if unreleased and unreleased[1].strip():
        faults.append("CHANGELOG.md has entries under 'Unreleased': move them to the new section")
    return faults


def build(project: Path, out: Path) -> Path:
    """Build a wheel in which all files have the last commit's time."""
    when = git("log", "-1", "--format=%ct").strip()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    environment = {**os.environ, "ONSIGHT_RELEASE": "1", "SOURCE_DATE_EPOCH": when}
    done = subprocess.run(
        [*command, str(project)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"error: {project} cannot be built:\n{done.stdout}{done.stderr}")
    (wheel,) = out.glob("*.whl")
    return wheel


def packed(project: Path) -> dict[str, str]:
    """Return the files and folders that go into a wheel, with their names in it."""
    with open(project / "pyproject.toml", "rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = {package: Path(package).name for package in wheel.get("packages", ())}
    return {
        (project / source).resolve().relative_to(ROOT).as_posix(): name
        for source, name in (packages | wheel.get("force-include", {})).items()
    }


def tracked(sources: dict[str, str]) -> dict[str, bytes]:
    """Return the contents of these files at HEAD, by their names in the wheel."""
    paths = git("ls-tree", "-r", "--name-only", "HEAD", *sources).splitlines()
    shown = subprocess.run(
        ["git", "-C", str(ROOT), "cat-file", "--batch"],
        input="".join(f"HEAD:{path}\n" for path in paths).encode(),
        capture_output=True,
        check=True,
    ).stdout
    files = {}
    for path in paths:
        head, _, shown = shown.partition(b"\n")
        size = int(head.split()[2])
        source = next(source for source in sources if f"{path}/".startswith(f"{source}/"))
        files[sources[source] + path.removeprefix(source)] = shown[:size]
        shown = shown[size + 1 :]
    return files


def git(*words: str) -> str:
    """Return the output of a git command in this repository."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout


def differing(first: Path, second: Path) -> list[str]:
    """Return the differences between two builds of a wheel."""
    if first.read_bytes() == second.read_bytes():
        return []
    first_files, second_files = read_wheel(first), read_wheel(second)
    names = sorted(
        name
        for name in {*first_files, *second_files}
        if first_files.get(name) != second_files.get(name)
    )
    return [f"two builds differ in {', '.join(names) or 'the times or order of their files'}"]


def unlike_tree(wheel: Path, tree: dict[str, bytes]) -> list[str]:
    """Return how a wheel differs from the tree, except for its own metadata."""
    files = read_wheel(wheel)
    metadata = {name for name in files if name.partition("/")[0].endswith(".dist-info")}
    packed = {name: content for name, content in files.items() if name not in metadata}
    faults = [f"{name} is missing from the wheel" for name in sorted(set(tree) - set(packed))]
    faults += [f"{name} is not in git" for name in sorted(set(packed) - set(tree))]
    faults += [
        f"{name} differs from git's version"
        for name in sorted(set(tree) & set(packed))
        if tree[name] != packed[name]
    ]
    if not any(name.endswith("METADATA") for name in metadata):
        faults.append("the wheel has no METADATA")
    return faults


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Read all files of a wheel by their names."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name[-1] != "/"}


if __name__ == "__main__":
    main()
