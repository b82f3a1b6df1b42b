"""`make test-full`: every test, the slow ones too; commit, counts and duration go to build/test-full.json."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

from e2e.harness.kube import REPO

# Names as they come: who waits an hour for the end wants to know at minute ten what failed.
STEPS = {
    "cluster": ["bash", "-c", "cd e2e/cluster && CGO_ENABLED=0 go test -vet=off ./internal/... && ./smoke.sh"],
    "python": [sys.executable, "-m", "pytest", "-v", "--durations=10", "-n", "2", "--dist", "loadgroup"],
}


def main() -> int:
    """Run every step, even after one failed; 0 when all passed."""
    start = time.monotonic()
    report = [run(name, command) for name, command in STEPS.items()]
    result = {
        "commit": git("rev-parse", "HEAD"),
        "clean": not git("status", "--porcelain"),
        "seconds": round(time.monotonic() - start),
        "steps": report,
    }
    (REPO / "build").mkdir(exist_ok=True)
    (REPO / "build/test-full.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 0 if all(step["passed"] for step in report) else 1


def run(name: str, command: list[str]) -> dict[str, object]:
    """One step: its output as it comes, and what its runner counted."""
    began, counts = time.monotonic(), dict[str, int]()
    with subprocess.Popen(command, cwd=REPO, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            counts = counted(line) or counts
    return {
        "step": name,
        "passed": process.returncode == 0,
        "seconds": round(time.monotonic() - began),
        "counts": counts,
    }


def counted(line: str) -> dict[str, int]:
    """What pytest's closing line counted; {} for any other line (libraries may print after it)."""
    if not re.search(r" in \d+\.\d+s", line):
        return {}
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line)}


def git(*words: str) -> str:
    """What git says."""
    return subprocess.run(["git", *words], cwd=REPO, check=True, text=True, capture_output=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
