"""Run the tests that compute in several ways, as other processors would: `make test-portable`.

python scripts/test_portable.py               # every setting
python scripts/test_portable.py --one COMMIT  # one setting and a share of the files, by its hash
"""

import argparse
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = [
    *(f"tests/{name}" for name in ("training", "step", "tune", "export", "inference")),
    *(f"tests/{name}" for name in ("features", "models", "explainer")),
    "packages/onsight-explain/tests",
]
# A processor ignores instructions that it lacks, so each setting runs everywhere.
SETTINGS = [
    {},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ONSIGHT_TEST_THREADS": "2"},
    {"ONSIGHT_TEST_WEIGHTS": "random"},
]
SHARES = 12  # the slowest twelfth takes well under three minutes on two cores


def test_files() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


def pick(commit: str) -> tuple[dict[str, str], list[str]]:
    """Return the setting and the test files for a commit; `make test` has run the first setting."""
    pairs = [*product(SETTINGS[1:], range(SHARES))]
    setting, share = pairs[int(commit, 16) % len(pairs)]
    return setting, test_files()[share::SHARES]


def run_tests(setting: dict[str, str], paths: list[str]) -> bool:
    words = " ".join(f"{name}={value}" for name, value in setting.items())
    print(f"\n{words or 'nothing set'}: {len(paths)} files or folders", flush=True)
    pytest = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal", *paths]
    return subprocess.run(pytest, cwd=ROOT, env=os.environ | setting, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", metavar="COMMIT", help="a hash, or the beginning of one")
    commit = parser.parse_args().one
    runs = [pick(commit)] if commit else [(setting, FOLDERS) for setting in SETTINGS]
    failed = [setting for setting, paths in runs if not run_tests(setting, paths)]
    sys.exit(f"failed with {failed}" if failed else 0)


if __name__ == "__main__":
    main()
