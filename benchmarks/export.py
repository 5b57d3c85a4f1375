"""Do exported models say what torch says, how fast are they, and what does int8 cost?

    python benchmarks/export.py SETS CACHE [--formats onnx ...] [--models compact ...]

SETS is the folder that picture_sets.py wrote its sets into. Each model is trained briefly (CACHE
keeps the runs), exported to each format and in int8, and all held-out pictures go through torch and
the exported file. Speeds are taken in turns on the same pictures, with the same threads; the ratio
is the median of the rounds, with its quartiles. Writes all into RESULTS.md.
"""

import argparse
from pathlib import Path

from onsight.hardware.spinning import choose_spinning

choose_spinning()  # before torch loads

from harness import circumstances, table, write_section  # noqa: E402

import onsight  # noqa: E402
from onsight.errors import OnsightError  # noqa: E402
from onsight.export.export import Exported, export  # noqa: E402

TRAININGS = {
    "compact": ("png-200-per-class", {"epochs": 2}),
    "tf_efficientnet_lite0": (
        "wallpaper-cells-60-20",
        {"pretrained": True, "freeze": True, "image_size": "128"},
    ),
    "resnet18": ("clip-art", {"epochs": 3, "image_size": "64"}),
}
HEADER = ["model, n held out", "format", "same label", "largest difference", "points lost"]
HEADER += ["times torch's speed: 1 picture", "batch", "size in MB"]


def trained(model: str, sets: Path, cache: Path) -> Path:
    name, fields = TRAININGS[model]
    run = cache / f"{model}-{name}"
    if not (run / "model.safetensors").exists():
        onsight.train(sets / name, out=run, model=model, **fields)
    return run


def row(model: str, to: str, found: Exported) -> list[str]:
    proof = found.proof
    loss, low, high = (100 * share for share in proof.loss)
    speeds = [
        f"{one.times:.2f} ({one.low:.2f} to {one.high:.2f}), {one.second_per_second:,.0f} images/s"
        for one in proof.speeds
    ]
    return [
        f"{model}, {proof.images:,}",
        to,
        f"{proof.agree:,}",
        f"{proof.largest_difference:.1e}",
        f"{loss:.2f} ({low:.2f} to {high:.2f})",
        *speeds,
        f"{found.facts['bytes'] / 1e6:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--models", nargs="*", default=list(TRAININGS))
    parser.add_argument("--formats", nargs="*", default=["onnx", "int8"])
    options = parser.parse_args()
    rows = []
    for model in options.models:
        run = trained(model, options.sets, options.cache)
        for to in options.formats:
            how = {"int8": True, "max_loss": 100.0} if to == "int8" else {"to": to}
            try:
                found = export(run, **how)
            except OnsightError as error:
                rows.append([model, to, f"refused: {error}", *[""] * 5])
                continue
            rows.append(row(model, to, found))
            print(rows[-1], flush=True)
    lines = ["## Exported models", "", circumstances("onnx", "onnxruntime", "onnxscript")]
    lines += ["", "`python benchmarks/export.py SETS CACHE`", "", *table(HEADER, rows)]
    write_section("export", lines)


if __name__ == "__main__":
    main()
