"""Check the locked packages for known vulnerabilities, and fail clearly if that is impossible.

python scripts/audit.py PIP_AUDIT
Exit code 0: none is known; 1: those listed are known; 3: not all packages could be checked.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INCOMPLETE = 3
_RETRY = "Run `make audit` again on a machine with network access"


def main() -> None:
    """Run pip-audit on the lock file, print the outcome and exit with its code."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--timeout", "10"]
    lock = ["--format", "json", "--requirement", str(ROOT / "requirements.lock")]
    done = subprocess.run(
        [sys.argv[1], *options, *lock], capture_output=True, text=True, check=False
    )
    code, text = interpret(done.stdout, done.stderr)
    print(text, file=sys.stderr if code else sys.stdout)
    sys.exit(code)


def interpret(out: str, err: str) -> tuple[int, str]:
    """Return the exit code and a message for pip-audit's output.

    pip-audit also succeeds if its index knows none of the packages, so this is checked here.
    """
    try:
        packages = json.loads(out)["dependencies"]
    except (ValueError, KeyError):
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        return INCOMPLETE, f"error: not audited: pip-audit got no response ({last}). {_RETRY}"
    skipped = [package for package in packages if "skip_reason" in package]
    known = [_describe(package, vuln) for package in packages for vuln in package.get("vulns", ())]
    checked = len(packages) - len(skipped)
    counts = f"{checked} of {len(packages)} locked packages were checked"
    if known:
        return 1, "\n".join([f"error: known vulnerabilities: {len(known)}; {counts}", *known])
    if skipped or not packages:
        why = f" ({skipped[0]['skip_reason']})" if skipped else ""
        return INCOMPLETE, f"error: incomplete audit: only {counts}{why}. {_RETRY}"
    return 0, f"no known vulnerabilities; {counts}"


def _describe(package: dict[str, Any], vuln: dict[str, Any]) -> str:
    fixed = ", ".join(vuln["fix_versions"]) or "no version yet"
    return f"{package['name']} {package['version']}: {vuln['id']}, fixed in {fixed}"


if __name__ == "__main__":
    main()
