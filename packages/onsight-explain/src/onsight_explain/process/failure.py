"""What to do about a script that failed, added to its own last words."""

import re
import signal

# Modules whose packages have other names.
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
_ABSENT = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_USAGE = re.compile(r"^\S+: error: |^Usage: ", re.MULTILINE)


def failure_words(said: str, code: int | None, script: str) -> str:
    """The last words of a script, and what to do about its failure.

    said: the end of its output; code: its exit code, None if it was ended at the limit.
    """
    hint = _hint(said, code, script)
    said = said.strip()
    return f"{said}\n{hint}" if said and hint else said or hint or _silent(code)


def nothing_seen(ended: str, limit_seconds: float, said: str) -> str:
    """Why a script that did not fail cannot be explained. ended: by what; said: its last words."""
    words = (
        "the script ended before enough training steps were seen: more than three updates by a "
        "torch optimizer are needed. Give it more epochs or images by its arguments after --"
    )
    if ended == "limit":
        words = (
            f"no training step was seen in {limit_seconds:.0f} s: give the script more time with "
            "--limit, or a smaller data set by its arguments after --"
        )
    return f"{words}\nIt said: {said}" if said else words


def ending(code: int | None) -> str:
    """How a child process ended, in words."""
    if code is None:
        return "no answer in time"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _hint(said: str, code: int | None, script: str) -> str:
    if code is None:
        return "The script was killed at its limit, because it did not answer."
    if code == -signal.SIGKILL:
        return (
            "The script was killed by SIGKILL: most likely the machine ran out of memory. Give it "
            "smaller batches, fewer workers or fewer images by its arguments after --"
        )
    if code < 0:
        return f"The script was ended by {ending(code)}."
    if code == 0:
        return (
            "The script ended its process before any training was seen, by os._exit or by "
            "continuing in the background: let it train in the process that is started."
        )
    if absent := _ABSENT.search(said):
        return _how_to_install(absent[1].partition(".")[0])
    if re.search(r"^EOFError", said, re.MULTILINE):
        return (
            "The script waits for input, and nobody is there to type it: give it the answer by an "
            f"argument, as in `onsight-explain {script} -- --name VALUE`"
        )
    if _USAGE.search(said):
        return f"Put its arguments after --, as in `onsight-explain {script} -- --epochs 3`"
    return ""


def _how_to_install(module: str) -> str:
    package = _PACKAGES.get(module, module if module in _SAME_NAME else "")
    return (
        f"Install it for this Python: pip install {package}"
        if package
        else f"No package is known for {module}: install what the script's instructions name, or "
        "start onsight in the environment in which the script runs"
    )


def _silent(code: int | None) -> str:
    return f"the script's process ended with {ending(code)} and said nothing"
