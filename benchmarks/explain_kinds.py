"""Does `onsight explain` understand every kind of training? Each script of `kinds/`, unchanged.

    pip install transformers accelerate lightning fastai webdataset
    python benchmarks/explain_kinds.py [--only hf_trainer,shards] [--seconds 30]

Prints for each: images/s by the script's own clock without explain and as explain sees it, the
shares of the phases, what was tried and what that gave, and the verdict.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
from harness import circumstances, table, write_section
from PIL import Image

KINDS = Path(__file__).parent / "kinds"
NO_SCRIPTS = {"net", "own_clock"}
SHARDS = 3
LEAST_SHARE = 0.02
OWN_SECONDS = 4.0


def make_photos(folder):
    """Noisy photographs in four classes, as files and in shards."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 640), ("val", 96)):
        for number in range(count):
            file = folder / part / str(number % 4) / f"{number:04}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((160, 160)).save(file, quality=90)
    files = sorted((folder / "train").rglob("*.jpg"))
    for shard in range(SHARDS):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for file in files[shard::SHARDS]:
                for name, data in (("jpg", file.read_bytes()), ("cls", file.parent.name.encode())):
                    info = tarfile.TarInfo(f"{file.stem}.{name}")
                    info.size = len(data)
                    tar.addfile(info, BytesIO(data))


def run(command, **environment):
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | offline | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


def own_rate(script, data, seconds):
    """images/s by the script's own clock."""
    out, errors = run([str(script), str(data)], KINDS_SECONDS=str(seconds))
    rates = [line.split()[1] for line in out.splitlines() if line.startswith("images/s ")]
    return float(rates[-1]) if rates else print(errors[-2000:])


def explained(script, data, seconds, is_quick):
    """The facts that explain tells."""
    options = ["--no-what-ifs"] if is_quick else []
    command = ["-m", "onsight", "explain", str(script), "--json", f"--seconds={seconds}"]
    out, errors = run([*command, *options, "--", str(data)])
    try:
        return json.loads(out[out.index("{") :])
    except ValueError:
        print(out[-2000:], errors[-3000:])
        return None


def row(script, data, options):
    own = own_rate(script, data, OWN_SECONDS)
    facts = explained(script, data, options.seconds, options.quick)
    if facts is None or own is None:
        return [script.stem, *["failed"] * 5]
    trace = facts["trace"]
    seen = trace["images"] / trace["seconds"]
    total = sum(facts["phases"].values())
    shares = {name: value / total for name, value in facts["phases"].items()}
    phases = ", ".join(
        f"{name} {share:.0%}"
        for name, share in sorted(shares.items(), key=lambda one: -one[1])
        if share >= LEAST_SHARE
    )
    tried = ", ".join(
        f"{one['name']} {one['ratio']:.2f}" if one["ratio"] else f"{one['name']}: {one['problem']}"
        for one in facts["what_ifs"]
    )
    print(f"\n{script.stem}: own {own:,.0f}, seen {seen:,.0f} images/s ({seen / own:.2f})")
    print(f"  phases add up to {total / trace['seconds']:.3f}: {phases}")
    print(f"  loader {trace['loader']}\n  optimizer {trace['optimizer']}\n  item {trace['item']}")
    each = trace["images"] / trace["steps"]
    print(f"  {each:.2f} images a step, {trace['precision']}, evaluated {trace['evaluated']}")
    print(
        f"  forward at {trace['forward_site']}, by {trace['trainer']!r}, remarks {trace['remarks']}"
    )
    print(f"  tried: {tried}\n  lines: {[one['text'] for one in facts['lines']]}")
    print(f"  {facts['verdict']}", flush=True)
    return [script.stem, f"{own:,.0f}", f"{seen:,.0f}", phases, tried, facts["verdict"]]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of scripts, with commas")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each script")
    parser.add_argument("--quick", action="store_true", help="try no changes")
    options = parser.parse_args()
    names = (
        options.only.split(",")
        if options.only
        else sorted(file.stem for file in KINDS.glob("*.py") if file.stem not in NO_SCRIPTS)
    )
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder:
        make_photos(Path(folder))
        rows = [row(KINDS / f"{name}.py", Path(folder), options) for name in names]
    header = ["kind", "own images/s", "seen", "phases", "what-ifs, ratios", "verdict"]
    lines = ["## Every kind of training", "", circumstances(), "", *table(header, rows)]
    if not options.only and not options.quick:
        write_section("explain_kinds", lines)


if __name__ == "__main__":
    main()
