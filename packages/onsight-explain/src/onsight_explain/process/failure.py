"""Describe why a script's process failed, and suggest what to do."""

import re
import signal
from pathlib import Path

FAILED = 3  # exit code of the child process if the script itself fails

_SHOWN_BYTES = 4000  # length of the shown end of a failed script's output

_SIGKILL = 9  # signal.SIGKILL, which Windows lacks

# Packages by the name of a module, where the names differ.
_PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "yaml": "pyyaml",
    "pytorch_lightning": "pytorch-lightning",
    "git": "GitPython",
    "dotenv": "python-dotenv",
    "attr": "attrs",
    "dateutil": "python-dateutil",
    "hydra": "hydra-core",
}
_SAME_NAME = {  # packages named like their modules
    *("accelerate", "albumentations", "datasets", "einops", "fastai", "kornia", "lightning"),
    *("matplotlib", "numpy", "pandas", "scipy", "seaborn", "tensorboard", "tensorflow", "timm"),
    *("tensorboardX", "torchmetrics", "torchvision", "tqdm", "transformers", "wandb", "webdataset"),
}
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_USAGE = re.compile(r"^\S+: error: |^Usage: ", re.MULTILINE)


def read_last_output(path: Path) -> str:
    """Return the end of a script's output in a file; "" if there is no such file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SHOWN_BYTES))
        return file.read().decode(errors="replace").strip()


def describe_failure(output: str, code: int | None, script: str) -> str:
    """Return the end of a script's output and, if the cause is recognized, what to do.

    code: the exit code of the process, or None if it was killed at the time limit.
    """
    parts = [part for part in (output.strip(), _suggest_fix(output, code, script)) if part]
    return "\n".join(parts) or f"the script's process ended with exit code {code} and no output"


def describe_no_training(ended: str, limit_seconds: float, output: str) -> str:
    """Return why a script that ran without an error cannot be explained.

    ended: "limit" if the time limit ended the script.
    """
    problem = (
        "the script ended before enough training steps were observed: more than three updates by "
        "a torch optimizer are needed. Raise the number of epochs or images with the script's "
        "own arguments, after --"
    )
    if ended == "limit":
        problem = (
            f"no training step was observed in {limit_seconds:.0f} s: raise the time limit with "
            "--limit, or choose a smaller dataset with the script's own arguments, after --"
        )
    return f"{problem}\nIts last output: {output}" if output else problem


def describe_sys_exit(code: object) -> str:
    """Return the message for a script that called sys.exit with this argument."""
    return code if isinstance(code, str) else f"The script called sys.exit({code!r})"


def _suggest_fix(output: str, code: int | None, script: str) -> str:
    if code is None:
        return "The script was killed at its time limit, because it did not respond."
    if code == -_SIGKILL:
        return (
            "The script was killed by SIGKILL: most likely the machine ran out of memory. "
            "Choose smaller batches, fewer workers or fewer images with the script's own "
            "arguments, after --"
        )
    if code < 0:
        return f"The script was ended by signal {_signal_name(-code)}."
    if code == 0:
        return (
            "The script ended its process before any training was observed: it called "
            "os._exit or continued in the background. Let it train in the process that is started."
        )
    if missing := _MISSING_MODULE.search(output):
        return _install_hint(missing[1].partition(".")[0])
    if re.search(r"^EOFError", output, re.MULTILINE):
        return (
            "The script waits for keyboard input, which is not available: pass the answer as an "
            f"argument, as in `onsight-explain {script} -- --name VALUE`"
        )
    if _USAGE.search(output):
        example = f"onsight-explain {script} -- --epochs 3"
        return f"Put the script's own arguments after --, as in `{example}`"
    return ""


def _install_hint(module: str) -> str:
    package = _PACKAGES.get(module, module if module in _SAME_NAME else "")
    if package:
        return f"Install it for this Python: pip install {package}"
    return (
        f"The package that provides {module} is not known: install the packages that the script's "
        "instructions name, or start onsight in the script's own environment"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)
