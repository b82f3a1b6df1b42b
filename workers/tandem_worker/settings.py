"""The worker's command line and environment."""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tandem_worker.hub import HubError, repository_of
from tandem_worker.transfer.backends import check_backend
from tandem_worker.transfer.base import BackendError
from tandem_worker.transfer.handshake import parse_key

DOORS: Final = Path(tempfile.gettempdir())


class SettingsError(Exception):
    """The worker cannot be started like this; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is fixed for a worker's life. Sizes as in the flags."""

    model: Path
    served_name: str
    dtype: str
    max_context: int
    host: str
    port: int
    kv_port: int
    page_tokens: int
    kv_memory_mib: int
    chunk_tokens: int
    max_batch: int
    max_queue: int
    threads: int | None
    prefill_timeout_s: float
    backend: str
    key: bytes
    worker: str
    transfer_dir: Path = DOORS
    revision: str = ""
    connections: int = 1
    speculate: int = 0
    draft_model: Path | None = None
    tensor_parallel: int = 1
    weights: str = ""
    kv: str = ""
    device: str = "cpu"
    hub: str = ""  # owner/name of a hub's model, which is yet to be fetched; `model` is then no folder


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError; argparse itself ends the process with code 2 for an unknown flag."""
    flags = make_parser(environment).parse_args(arguments)
    try:
        backend = check_backend(flags.transfer_backend)
        key = parse_key(key_text(environment))
    except (BackendError, ValueError) as error:
        raise SettingsError(str(error)) from error
    hub = hub_repository(flags.model)
    model = Path(hub) if hub else model_path(flags.model)
    return Settings(
        model=model,
        hub=hub,
        served_name=flags.served_name or model.name,
        dtype=flags.dtype,
        max_context=flags.max_context,
        host=flags.host,
        port=flags.port,
        kv_port=flags.kv_port,
        page_tokens=flags.page_tokens,
        kv_memory_mib=flags.kv_memory_mib,
        chunk_tokens=flags.chunk_tokens,
        max_batch=flags.max_batch,
        max_queue=flags.max_queue,
        threads=flags.threads,
        prefill_timeout_s=flags.prefill_timeout,
        backend=backend,
        transfer_dir=flags.transfer_dir,
        revision=flags.revision,
        connections=flags.transfer_connections,
        speculate=flags.speculate,
        draft_model=model_path(flags.draft_model) if flags.draft_model else None,
        tensor_parallel=flags.tensor_parallel,
        weights=flags.weights,
        kv=flags.kv,
        device=flags.device,
        key=key,
        worker=environment.get("POD_NAME") or socket.gethostname(),
    )


def hub_repository(source: str) -> str:
    """`owner/name` of a hub's model, '' for any other source. Raises SettingsError."""
    try:
        return repository_of(source) or ""
    except HubError as error:
        raise SettingsError(f"--model {error}") from error


def key_text(environment: Mapping[str, str]) -> str:
    """The transfer key's hex form, from a mounted Secret's file or from the environment. Raises SettingsError."""
    if path := environment.get("TANDEM_TRANSFER_KEY_FILE"):
        try:
            return Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"TANDEM_TRANSFER_KEY_FILE {path} cannot be read: {error}") from error
    if "TANDEM_TRANSFER_KEY" not in environment:
        raise SettingsError("TANDEM_TRANSFER_KEY(_FILE) is not set: mount the resource's transfer-key Secret as it")
    return environment["TANDEM_TRANSFER_KEY"]


def make_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The flags of docs/reference/borders.md."""
    parser = argparse.ArgumentParser("tandem-worker", description="Serve one model: prefill, decode, or both.")
    parser.add_argument(
        "--model", required=True, help="file:///directory (model.gguf or *.safetensors), or hf://owner/name"
    )
    parser.add_argument("--served-name", default="", help="the name that clients use; default: the directory's")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--max-context", type=positive, default=2048, help="tokens of prompt and answer")
    parser.add_argument("--host", default=environment.get("POD_IP") or "127.0.0.1", help="the pod's own address")
    parser.add_argument("--port", type=int, default=8000, help="HTTP")
    parser.add_argument("--kv-port", type=int, default=8001, help="worker to worker")
    parser.add_argument("--page-tokens", type=positive, default=16)
    parser.add_argument(
        "--kv-memory-mib", type=positive, default=0, help="default: by what is free; 512 on a CPU without limit"
    )
    parser.add_argument("--chunk-tokens", type=positive, default=256)
    parser.add_argument("--max-batch", type=positive, default=64)
    parser.add_argument("--max-queue", type=positive, default=256)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where one is")
    parser.add_argument("--threads", type=positive, default=None, help="default: torch's own")
    parser.add_argument("--prefill-timeout", type=float, default=120.0, help="seconds in a prefill worker's queue")
    parser.add_argument("--transfer-backend", default="tcp", help="tcp, shm (one machine), nixl, mooncake")
    parser.add_argument("--transfer-connections", type=positive, default=1, help="tcp: to each prefill worker")
    parser.add_argument("--transfer-dir", type=Path, default=DOORS, help="shm: a directory that all these workers see")
    parser.add_argument("--revision", default="", help="of the model's files; two workers must agree on it")
    parser.add_argument("--speculate", type=natural, default=0, help="tokens to guess ahead when decoding; 0: none")
    parser.add_argument("--draft-model", default="", help="file:///directory of a small model that guesses; default: "
                        "what followed the same words before")  # fmt: skip
    parser.add_argument("--weights", choices=("", "int8"), default="", help="int8: half the memory of bfloat16's")
    parser.add_argument("--kv", choices=("", "int8", "fp8"), default="", help="8 bits: half the pages' memory")
    parser.add_argument(
        "--tensor-parallel", type=positive, default=1, help="ranks that share the model, a process each"
    )
    return parser


def natural(text: str) -> int:
    """Zero or a positive, for argparse; at most 64, more is never right."""
    number = int(text)
    if not 0 <= number <= 64:
        raise argparse.ArgumentTypeError(f"{text} is not 0 to 64")
    return number


def positive(text: str) -> int:
    """A whole number above zero, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def model_path(source: str) -> Path:
    """`file:///directory` → the directory. Raises SettingsError for every other source, by its name."""
    parts = urlsplit(source)
    if parts.scheme != "file":
        raise SettingsError(f"--model {source}: a worker loads file:// and hf://, not {parts.scheme or 'a bare path'}")
    if parts.netloc not in {"", "localhost"} or not parts.path:
        raise SettingsError(f"--model {source}: write file:// and an absolute directory, as in file:///models/chat")
    return Path(unquote(parts.path))


def from_process() -> Mapping[str, str]:
    """The process' environment."""
    return os.environ
