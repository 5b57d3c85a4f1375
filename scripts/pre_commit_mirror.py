"""Write the repository that pre-commit clones: it holds no code and installs onsight-lint.

    python scripts/pre_commit_mirror.py [--out dist/pre-commit-mirror]

A hook from Onsight's own repository would install all of Onsight, including torch. To publish a
version, write into a clone of the mirror, commit everything, and tag the commit vVERSION.
"""

import argparse
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

PROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "onsight-lint-pre-commit"
version = "{version}"
requires-python = "{python}"
dependencies = ["onsight-lint=={version}"]

[tool.hatch.build.targets.wheel]
bypass-selection = true # there is no code here
"""

HOOKS = """\
- id: onsight-lint
  name: onsight-lint
  description: Find mistakes in PyTorch training scripts that a run does not reveal.
  entry: onsight-lint
  language: python
  types: [python]
  require_serial: true
"""

README = """\
# onsight-lint for pre-commit

A [pre-commit](https://pre-commit.com) hook that finds mistakes in PyTorch training scripts without
running them. It installs `onsight-lint` {version} from PyPI and no other package. In
`.pre-commit-config.yaml`:

```yaml
- repo: ... # where this repository is
  rev: v{version}
  hooks:
    - id: onsight-lint
      # args: [--fix]
```

This repository is generated from Onsight's by `make pre-commit-mirror`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "pre-commit-mirror")
    out = parser.parse_args().out
    version = write_mirror(out)
    print(f"wrote the mirror for onsight-lint {version} to {out}: commit it and tag it v{version}")


def write_mirror(folder: Path) -> str:
    """Write the files of the mirror for this working tree's version, and return that version."""
    linter = ROOT / "packages" / "onsight-lint"
    project = tomllib.loads((linter / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = {"version": project["version"], "python": project["requires-python"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(**facts), encoding="utf-8")
    (folder / ".pre-commit-hooks.yaml").write_text(HOOKS, encoding="utf-8")
    (folder / "README.md").write_text(README.format(**facts), encoding="utf-8")
    shutil.copy(linter / "LICENSE", folder)
    return str(project["version"])


if __name__ == "__main__":
    main()
