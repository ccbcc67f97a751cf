"""Asks for known vulnerabilities of the packages in requirements.lock, with pip-audit.

    python deploy/audit.py            # exit code 1 if there are any
    python deploy/audit.py --report   # exit code 0 also then

Where the database cannot be reached it says so, and the exit code is 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: How long a look-up may take, in seconds.
AUDIT_SECONDS = 60.0


def main(arguments: list[str]) -> int:
    """Print what was found, and return the exit code."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.lock"), "--disable-pip"]
    try:
        ended = subprocess.run(  # noqa: S603 -- fixed words
            [*command, "--format", "json", "--progress-spinner", "off", "--timeout", "5"],
            capture_output=True,
            timeout=AUDIT_SECONDS,
            check=False,
        )
        packages = json.loads(ended.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return _not_asked(f"no answer within {AUDIT_SECONDS:.0f} s")
    except (ValueError, KeyError):
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        return _not_asked(said[-1] if said else "pip-audit said nothing")
    findings = list(vulnerabilities(packages))
    for finding in findings:
        sys.stdout.write(f"audit: {finding}\n")
    sys.stdout.write(f"audit: {len(packages)} packages, {len(findings)} known vulnerabilities\n")
    return 1 if findings and arguments != ["--report"] else 0


def vulnerabilities(packages: list[dict[str, object]]) -> list[str]:
    """One line for each known vulnerability of pip-audit's packages."""
    lines: list[str] = []
    for package in packages:
        found = package.get("vulns")
        for each in found if isinstance(found, list) else []:
            fixed = ", ".join(each.get("fix_versions") or []) or "no version"
            lines.append(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    return lines


def _not_asked(reason: str) -> int:
    sys.stdout.write(f"audit: known vulnerabilities were not looked up: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
