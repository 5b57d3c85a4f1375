"""How a script's process failed, in words: its exit code, its last output, and what to do."""

import re
import signal
from pathlib import Path

FAILED = 3  # the exit code of our process if the script itself fails

_SHOWN_BYTES = 4000  # bytes to show from the end of a failed script's output

# Packages whose names differ from those of their modules.
_PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "tensorboardX": "tensorboardX",
    "pytorch_lightning": "pytorch-lightning",
    "git": "GitPython",
    "dotenv": "python-dotenv",
    "attr": "attrs",
    "dateutil": "python-dateutil",
    "hydra": "hydra-core",
}
_SAME_NAME = {
    *("accelerate", "albumentations", "datasets", "einops", "fastai", "kornia", "lightning"),
    *("matplotlib", "numpy", "pandas", "scipy", "seaborn", "tensorboard", "tensorflow", "timm"),
    *("torchmetrics", "torchvision", "tqdm", "transformers", "wandb", "webdataset"),
}
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_USAGE = re.compile(r"^\S+: error: |^Usage: ", re.MULTILINE)


def read_last_output(path: Path) -> str:
    """Return the end of what a script has printed into a file; "" if there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SHOWN_BYTES))
        return file.read().decode(errors="replace").strip()


def describe_failure(output: str, code: int | None, script: str) -> str:
    """Return the end of a script's output and what to do about its failure.

    code: the exit code of its process, or None if it was killed at its time limit.
    """
    hint = _hint(output, code, script)
    output = output.strip()
    if output and hint:
        return f"{output}\n{hint}"
    return output or hint or f"the script's process ended with {_exit_words(code)} and no output"


def describe_no_training(ended: str, limit_seconds: float, output: str) -> str:
    """Return why a script that did not fail cannot be explained; `ended` is what ended it."""
    problem = (
        "the script ended before enough training steps were observed: more than three updates by "
        "a torch optimizer are needed. Give it more epochs or images by its arguments after --"
    )
    if ended == "limit":
        problem = (
            f"no training step was observed in {limit_seconds:.0f} s: give the script more time "
            "with --limit, or a smaller dataset by its arguments after --"
        )
    return f"{problem}\nIts last output: {output}" if output else problem


def describe_sys_exit(code: object) -> str:
    """Return the message of a script that ended itself by sys.exit with this argument."""
    return code if isinstance(code, str) else f"The script ended itself by sys.exit({code!r})"


def _hint(output: str, code: int | None, script: str) -> str:
    if code is None:
        return "The script was killed at its time limit, because it did not respond."
    if code == -signal.SIGKILL:
        return (
            "The script was killed by SIGKILL: most likely the machine ran out of memory. Give it "
            "smaller batches, fewer workers or fewer images by its arguments after --"
        )
    if code < 0:
        return f"The script was ended by {_exit_words(code)}."
    if code == 0:
        return (
            "The script ended its process before any training was observed, by os._exit or by "
            "continuing in the background: let it train in the process that is started."
        )
    if missing := _MISSING_MODULE.search(output):
        return _install_hint(missing[1].partition(".")[0])
    if re.search(r"^EOFError", output, re.MULTILINE):
        return (
            "The script waits for input, and nobody is there to type it: pass the answer as an "
            f"argument, as in `onsight-explain {script} -- --name VALUE`"
        )
    if _USAGE.search(output):
        return f"Put its arguments after --, as in `onsight-explain {script} -- --epochs 3`"
    return ""


def _install_hint(module: str) -> str:
    package = _PACKAGES.get(module, module if module in _SAME_NAME else "")
    if package:
        return f"Install it for this Python: pip install {package}"
    return (
        f"The package that provides {module} is not known: install what the script's instructions "
        "name, or start onsight in the environment in which the script runs"
    )


def _exit_words(code: int | None) -> str:
    if code is None:
        return "no response in time"
    return f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
