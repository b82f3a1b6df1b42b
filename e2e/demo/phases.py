"""A load from its first request to its verdict, with the table alive meanwhile."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.demo.judge import Targets
from e2e.demo.screen import Row, Screen
from e2e.harness.kube import REPO, Kube
from e2e.harness.world import resource
from e2e.load import Result, Status, Summary

LOOK_BACK = 20.0  # seconds of requests behind each row of the table


@dataclass(frozen=True, slots=True)
class Load:
    """An open-loop load: Poisson arrivals of one shape."""

    title: str
    starved: str  # the role that it is made to starve
    rate: float
    prompt_tokens: int
    output_tokens: int
    seed: int


@dataclass(slots=True)
class Outcome:
    """What a load showed: its requests, and when the ratio moved (seconds since it began)."""

    results: list[Result] = field(default_factory=list)
    ratios: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def moved_at(self) -> float | None:
        """When the ratio first differed from what the load found."""
        return next((at for at, ratio in self.ratios if ratio != self.ratios[0][1]), None)

    def before(self, targets: Targets, window: float) -> Summary:
        """The last `window` seconds of requests before the move (before the end, where nothing moved)."""
        end = self.seconds if self.moved_at is None else self.moved_at
        return targets.figures(self.results, max(0.0, end - window), end)

    def after(self, targets: Targets, window: float) -> Summary:
        """The last `window` seconds of requests."""
        return targets.figures(self.results, self.seconds - window, self.seconds)


@contextlib.contextmanager
def driven(load: Load, url: str, model: str, seconds: float, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The load generator, a process of its own so that its clock is its own."""
    out.unlink(missing_ok=True)
    command = [
        *(
            sys.executable,
            "-m",
            "e2e.load",
            "--url",
            url,
            "--model",
            model,
            "--jsonl",
            str(out),
            "--seed",
            str(load.seed),
        ),
        *("--rate", f"{load.rate:.4f}", "--seconds", f"{seconds:.0f}"),
        *("--prompt-tokens", str(load.prompt_tokens), "--output-tokens", str(load.output_tokens)),
        # Off and Auto get the same arrivals, and neither finds the other's prompts in a prefix cache.
        *("--salt", out.stem),
    ]
    log = out.with_suffix(".log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPO)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        if process.poll() is None:
            process.kill()
        log.close()


def watch(load: Load, kube: Kube, name: str, url: str, targets: Targets, seconds: float, out: Path) -> Outcome:
    """Drive the load for `seconds`, showing ratio, TTFT, TPOT and the decision's words as they change."""
    outcome = Outcome(seconds=seconds)
    with (
        driven(load, url, served_name(kube, name), seconds, out) as process,
        Screen(load.title, targets.ttft_ms, targets.tpot_ms, targets.percentile) as screen,
    ):
        start = time.monotonic()
        while process.poll() is None and time.monotonic() - start < seconds + 60:
            at = time.monotonic() - start
            outcome.results = read(out)
            status = (resource(kube, name) or {}).get("status") or {}
            ratio = status.get("ratio") or "?"
            if not outcome.ratios or outcome.ratios[-1][1] != ratio:
                outcome.ratios.append((at, ratio))
            screen.show(row(outcome, at, ratio, status, targets, load.rate))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
    outcome.results = read(out)
    if process.returncode != 0:
        raise RuntimeError(f"the load generator ended with {process.returncode}: see {out.with_suffix('.log')}")
    return outcome


def row(outcome: Outcome, at: float, ratio: str, status: dict[str, Any], targets: Targets, rate: float) -> Row:
    """One moment for the table: requests that ended in the last seconds, and how many are still open."""
    ended = [r for r in outcome.results if r.status is Status.OK and (r.last_s or 0.0) >= at - LOOK_BACK]
    seen = targets.figures(ended, 0.0, math.inf)
    decision = status.get("decision") or {}
    due = min(at, outcome.seconds) * rate
    words = f"{decision.get('reason', '')}: {decision.get('message', '')}" if decision else "no decision yet"
    return Row(at, ratio, seen.ttft_ms, seen.tpot_ms, max(0, round(due - len(outcome.results))), words)


def read(out: Path) -> list[Result]:
    """The requests that ended so far, from the generator's file; a half-written last line waits for the next look."""
    results: list[Result] = []
    if not out.exists():
        return results
    for line in out.read_text().splitlines():
        try:
            seen = json.loads(line)
        except json.JSONDecodeError:
            continue
        known = {name: seen[name] for name in Result.__dataclass_fields__}
        results.append(Result(**{**known, "status": Status(known["status"])}))
    return results


def served_name(kube: Kube, name: str) -> str:
    """The model's name at the OpenAI API."""
    found = resource(kube, name)
    if found is None:
        raise RuntimeError(f"no DisaggregatedInference {name} in the namespace")
    return str(found["spec"]["model"]["servedName"])
