"""`python -m e2e.bench.clients`: aiperf or locust, unmodified, as a client of a worker or of a router, bounded.

Either (aiperf has 0.8 GB with what it needs) lives in an environment of its own, which `--place` makes where it is
missing; it is no extra of this project. Without `--url` a worker with SmolLM2 is started on 127.0.0.1 and ended after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.bench.engine_models import SMOLLM
from e2e.bench.table import Row, write
from e2e.harness.kube import REPO
from e2e.harness.ports import free_port
from e2e.harness.waiting import until
from tandem_worker.engine import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS: Final = {"aiperf": "0.13.0", "locust": "2.42.6"}
SERVED: Final = "smollm2"
READY_S: Final = 180.0
FIGURES: Final = (
    "request_count", "request_throughput", "output_token_throughput", "time_to_first_token", "inter_token_latency",
    "request_latency", "output_sequence_length",
)  # fmt: skip


def main() -> int:
    """Run it, print what it measured, write build/bench/clients.json. 1 where a request failed."""
    asked = parse()
    client = installed(asked.client, asked.place or REPO / "build" / asked.client)
    folder = REPO / "build/bench/clients"
    tokenizer(folder / "tokenizer")
    with contextlib.nullcontext(asked.url) if asked.url else worker(folder / "worker.log") as url:
        found = (locust if asked.client == "locust" else aiperf)(client, url, folder, asked)
    write("clients", [*found.rows, Row("requests that failed", found.failed, "")])
    return int(found.failed > 0 or found.done < asked.requests)


@dataclass(frozen=True, slots=True)
class Found:
    """What a client says of its run."""

    done: float
    failed: float
    rows: list[Row]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("bench-clients")
    parser.add_argument("--client", choices=VERSIONS, default="aiperf")
    parser.add_argument("--url", default="", help="of a running worker or router; default: a worker of its own")
    parser.add_argument("--place", type=Path, help="of the client; made if missing. Default: in build/")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128, help="aiperf's")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--within", type=float, default=300.0, help="seconds")
    return parser.parse_args()


def installed(name: str, place: Path) -> Path:
    """The client, in its environment."""
    program = place / "bin" / name
    if not program.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(place / "bin/pip"), "install", "--quiet", f"{name}=={VERSIONS[name]}"], check=True)
    return program


def tokenizer(place: Path) -> None:
    """The model's tokenizer in Hugging Face's form, by which aiperf makes prompts and counts tokens."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "tokenizer.json").write_text(load_tokenizer(SMOLLM).to_json())
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@contextlib.contextmanager
def worker(log: Path) -> Iterator[str]:
    """A worker's URL, while it runs."""
    port = free_port()
    flags = [f"--model=file://{SMOLLM}", f"--served-name={SERVED}", "--host=127.0.0.1", f"--port={port}", "--kv-port=0"]
    environment = {**os.environ, "TANDEM_TRANSFER_KEY": secrets.token_hex(32)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandem_worker.main", *flags], env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}"
        until(f"the worker at {url} is ready", lambda: is_ready(url, process), READY_S)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Does it answer? Raises RuntimeError where it has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"the worker at {url} ended with code {process.returncode}; its log says why")
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(url + "/ready", timeout=5).status == 200)  # noqa: S310 (a URL of this file)
    return False


def aiperf(client: Path, url: str, folder: Path, asked: argparse.Namespace) -> Found:
    """What aiperf found. Raises RuntimeError where it failed."""
    command = [
        str(client), "profile", "--model", SERVED, "--url", url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", str(folder / "tokenizer"), "--artifact-dir", str(folder / "results"), "--ui", "none",
        "--request-count", str(asked.requests), "--concurrency", str(asked.concurrency), "--random-seed", "1",
        "--isl", str(asked.prompt_tokens), "--osl", str(asked.output_tokens), "--extra-inputs", "ignore_eos:true",
    ]  # fmt: skip
    # Its offline mode looks for the tokenizer in the hub's cache alone; a folder's is read from there without it.
    done = subprocess.run(command, capture_output=True, text=True, timeout=asked.within, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"aiperf ended with code {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    found: dict[str, Any] = json.loads((folder / "results/profile_export_aiperf.json").read_text())
    rows = [
        Row(f"{name} {kind}", found[name][kind], found[name]["unit"])
        for name in FIGURES
        if name in found
        for kind in ("avg", "p50", "p99")
        if found[name].get(kind) is not None
    ]
    return Found(found["request_count"]["avg"], found.get("error_request_count", {}).get("avg", 0), rows)


def locust(client: Path, url: str, folder: Path, asked: argparse.Namespace) -> Found:
    """What locust found by `locustfile.py`, after so many requests. Raises RuntimeError where it said nothing."""
    command = [
        str(client), "--headless", "--locustfile", str(Path(__file__).with_name("locustfile.py")), "--host", url,
        "--users", str(asked.concurrency), "--spawn-rate", str(asked.concurrency), "--json", "--only-summary",
        "--run-time", f"{asked.within:.0f}s",
    ]  # fmt: skip
    said = {"TANDEM_BENCH_MODEL": SERVED, "TANDEM_BENCH_TOKENS": str(asked.output_tokens)}
    said["TANDEM_BENCH_REQUESTS"] = str(asked.requests)
    within = asked.within + 60
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=within, check=False, cwd=folder, env=os.environ | said
    )
    try:
        kinds: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"locust ended with code {done.returncode}: {done.stderr[-2000:]}") from None
    rows = [
        Row(f"{kind['name']} {figure}", kind[figure], "ms")
        for kind in kinds
        for figure in ("min_response_time", "max_response_time")
    ]
    return Found(sum(k["num_requests"] for k in kinds), sum(k["num_failures"] for k in kinds), rows)


if __name__ == "__main__":
    sys.exit(main())
