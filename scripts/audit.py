"""Check the locked packages for known vulnerabilities, and say clearly if that was not possible.

python scripts/audit.py PIP_AUDIT
Exit code 0: none is known; 1: some are, and are listed; 3: not all packages could be checked.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOT_ASKED = 3
_AGAIN = "Run `make audit` again on a machine with a network"


def main() -> None:
    """Run pip-audit on the lock file, print its answer and exit with its meaning."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--timeout", "10"]
    lock = ["--format", "json", "--requirement", str(ROOT / "requirements.lock")]
    done = subprocess.run(
        [sys.argv[1], *options, *lock], capture_output=True, text=True, check=False
    )
    code, text = judged(done.stdout, done.stderr)
    print(text, file=sys.stderr if code else sys.stdout)
    sys.exit(code)


def judged(out: str, err: str) -> tuple[int, str]:
    """The exit code and a message, from pip-audit's answer.

    pip-audit also succeeds if its index knows none of the packages, so that is checked here.
    """
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, KeyError):
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        return NOT_ASKED, f"error: not audited: pip-audit got no answer ({last}). {_AGAIN}"
    skipped = [package for package in packages if "skip_reason" in package]
    weak = [_line(package, vuln) for package in packages for vuln in package.get("vulns", ())]
    asked = len(packages) - len(skipped)
    counts = f"{asked} of {len(packages)} locked packages were asked about"
    if weak:
        return 1, "\n".join([f"error: {len(weak)} known weaknesses; {counts}", *weak])
    if skipped or not packages:
        why = f" ({skipped[0]['skip_reason']})" if skipped else ""
        return NOT_ASKED, f"error: not audited as a whole: only {counts}{why}. {_AGAIN}"
    return 0, f"no weakness is known; {counts}"


def _line(package: dict[str, Any], vuln: dict[str, Any]) -> str:
    mended = ", ".join(vuln["fix_versions"]) or "no version yet"
    return f"{package['name']} {package['version']}: {vuln['id']}, mended in {mended}"


if __name__ == "__main__":
    main()
