"""Run the notebooks in docs/notebooks and store their outputs (make notebooks).

python scripts/notebooks.py [NAME ...]   (without names: all)

Each runs in its own temporary folder, so that no output contains a path of this machine.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT_SECONDS = 300  # per cell


def main() -> None:
    """Run and rewrite the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # threads spin only briefly while waiting
    for path in select(parser.parse_args().names):
        start = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=TIMEOUT_SECONDS, resources=resources).execute()
        clean(notebook)
        nbformat.write(notebook, path)
        size = path.stat().st_size / 1000
        print(f"{path.name}: {time.monotonic() - start:.0f} s, {size:.0f} kB")


def select(names: list[str]) -> list[Path]:
    """Return the named notebooks, or all."""
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    if unknown := sorted({*names} - {*paths}):
        sys.exit(f"error: unknown notebooks: {', '.join(unknown)}; known: {', '.join(paths)}")
    return [paths[name] for name in names or paths]


def clean(notebook: Any) -> None:
    """Keep printed results and plots; drop progress, timestamps and kernel details."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if is_shown(output)]
        for output in cell.outputs:
            if "data" in output:
                shown = "image/png" if "image/png" in output.data else "text/plain"
                output.data = {shown: output.data[shown]}
                output.metadata = {}


def is_shown(output: Any) -> bool:
    """Return whether an output is a result, not the progress of a run."""
    if output.output_type == "stream":
        return bool(output.name == "stdout")
    return output.output_type == "execute_result" or "image/png" in output.data


if __name__ == "__main__":
    main()
