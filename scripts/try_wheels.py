"""Install each wheel into its own environment and use it as a user would.

python scripts/try_wheels.py DIST [NAME ...]   (without names: all four; onsight needs 5 GB)
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

SCRIPT = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.rand(8, 4)).sum()
    loss.backward()
    optimizer.step()
"""  # without zero_grad(), which onsight-lint reports
FINDING = 1  # exit code of onsight-lint where it finds mistakes

Run = Callable[..., str]


def main() -> None:
    """Try the named wheels. A command that fails, or does not print what it should, is an error."""
    tries = {
        "onsight-lint": try_lint,
        "onsight-explain": try_explain,
        "onsight-run": try_run,
        "onsight": try_onsight,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.names or tries:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            run = install(name, arguments.dist.resolve(), folder)
            (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
            tries[name](run, folder)
        print(f"{name}: installed and used")


def install(name: str, dist: Path, folder: Path) -> Run:
    """Install a distribution of DIST into a new environment; return a function to run commands."""
    (wheel,) = dist.glob(f"{name.replace('-', '_')}-[0-9]*.whl")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")

    def run(*command: str, expected: int = 0) -> str:
        done = subprocess.run(
            [programs / command[0], *command[1:]],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != expected:
            ended = f"{' '.join(command)} ended with {done.returncode}, not {expected}"
            sys.exit(f"error: {name}: {ended}:\n{done.stdout}{done.stderr}")
        return done.stdout

    options = ["--quiet", "--disable-pip-version-check", "--find-links", str(dist)]
    run("pip", "install", *options, str(wheel))
    run("pip", "check")
    return run


def try_lint(run: Run, folder: Path) -> None:
    """Find the mistake in the script."""
    found = run("onsight-lint", "train.py", expected=FINDING)
    if "zero_grad" not in found:
        sys.exit(f"error: onsight-lint did not report the missing zero_grad():\n{found}")


def try_explain(run: Run, folder: Path) -> None:
    """Print the help, which needs no training."""
    run("onsight-explain", "--help")
    run("python", "-c", "import torch, onsight_explain.placement.placement")


def try_run(run: Run, folder: Path) -> None:
    """Check that the command works without torch."""
    run("onsight", "predict", "--help")
    run("python", "-c", "import torch", expected=1)


def try_onsight(run: Run, folder: Path) -> None:
    """Train on the demo and use the model."""
    run("onsight", "train", "demo", "--model", "lenet", "--epochs", "1", "--out", "first")
    run("onsight", "eval", "first", "demo")
    run("onsight", "lint", "train.py", expected=FINDING)


if __name__ == "__main__":
    main()
