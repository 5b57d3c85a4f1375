"""Runs the program in the README of an exported file, as a user would."""

import re
import runpy
import sys


def run_readme(readme, image, monkeypatch):
    """The probabilities (K,) that the program computes for an image."""
    (program,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    script = readme.with_suffix(".py")
    script.write_text(program)
    monkeypatch.chdir(readme.parent)
    monkeypatch.setattr(sys, "argv", [str(script), str(image)])
    return runpy.run_path(str(script))["probabilities"]
