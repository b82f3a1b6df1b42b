"""A worker can be ended from its first moment on, as the first process of a container too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

START = "from tandem_worker.start import main; main()"
WITHIN_S = 30.0


def catches(process, number):
    """Has the process a handler of its own for this signal? (SigCgt, proc(5))"""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells what a process listens to")
def test_a_worker_that_is_ended_while_it_starts_is_gone_at_once(tmp_path):
    flags = [f"--model=file://{tmp_path}", "--host=127.0.0.1", "--port=0"]
    process = subprocess.Popen([sys.executable, "-c", START, *flags], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + WITHIN_S
        while not catches(process, signal.SIGTERM) and time.monotonic() < end:
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=WITHIN_S)
    finally:
        process.kill()
    assert (process.returncode, said) == (128 + signal.SIGTERM, "ended before it was ready\n")
