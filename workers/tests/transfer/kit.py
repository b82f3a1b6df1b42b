"""A small model with a tokenizer, workers in this process, workers as processes, and how tests wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tandem_worker.assembly import Assembled, LoadedParts, assemble, load
from tandem_worker.engine import Sampling, Token
from tandem_worker.metrics import Metrics
from tandem_worker.server.app import make_app
from tandem_worker.server.service import Service
from tandem_worker.settings import Settings
from tandem_worker.tracing import OFF, Tracing
from tandem_worker.transfer.pull import Failure
from workers.tests.prompts import token_ids
from workers.tests.tiny import write_tiny

KEY = "7" * 64
GREEDY = Sampling(max_tokens=12, ignore_eos=True)
DEADLINE_S = 240.0  # generous: a loaded machine is slow, a hang is for ever
SMOLLM2 = Path(__file__).parents[3] / "build/models/smollm2-135m-instruct"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


def write_model(directory: Path) -> Path:
    """The tiny random Llama, with a tokenizer of bytes and a chat template."""
    write_tiny(directory)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *letters[:253]])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<unk>"), AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def make_settings(model: Path, name: str, **changes: Any) -> Settings:
    """Settings of a worker on free ports of 127.0.0.1."""
    values: dict[str, Any] = {
        "model": model,
        "served_name": "tiny",
        "dtype": "float32",
        "max_context": 512,
        "host": "127.0.0.1",
        "port": 0,
        "kv_port": 0,
        "page_tokens": 4,
        "kv_memory_mib": 2,
        "chunk_tokens": 32,
        "max_batch": 8,
        "max_queue": 64,
        "threads": 1,
        "prefill_timeout_s": 60.0,
        "backend": "tcp",
        "key": bytes.fromhex(KEY),
        "worker": name,
    }
    return Settings(**{**values, **changes})


@dataclass
class Running:
    """A worker in this process."""

    settings: Settings
    service: Service
    parts: LoadedParts
    assembled: Assembled
    url: str

    @property
    def kv_address(self) -> str:
        return f"127.0.0.1:{self.assembled.kv_port}"

    @property
    def engine(self):
        return self.parts.engine

    @property
    def node(self):
        return self.assembled.node

    def is_empty(self) -> bool:
        """Nothing is computed, promised, quarantined or pushed, and every page can be had."""
        stats = self.engine.stats()
        pages_free = stats.kv_usage == 0 and stats.quarantined_pages == 0
        idle = not stats.running and not stats.waiting and not self.node.prefill.active
        return pages_free and idle and not self.node.decode.count(*type_states())


def type_states():
    from tandem_worker.transfer.ticket import State

    return tuple(State)


@asynccontextmanager
async def running(model: Path, name: str, tracing: Tracing = OFF, **changes: Any):
    """A worker in this process, stopped at the end."""
    settings = make_settings(model, name, **changes)
    service = Service(settings.served_name, settings.worker, Metrics(), 60.0, tracing)
    parts = load(settings)
    assembled = await assemble(parts, settings, service)
    runner = web.AppRunner(make_app(service), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield Running(settings, service, parts, assembled, f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()
        await assembled.stop()


class Heard:
    """A transfer's listener that keeps everything."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.failure: Failure | None = None
        self.granted: int | None = None
        self.bytes = 0
        self._change = asyncio.Event()

    def on_granted(self, first_page: int) -> None:
        self.granted = first_page
        self._change.set()

    def on_pages(self, byte_count: int) -> None:
        self.bytes += byte_count
        self._change.set()

    def on_token(self, token: Token) -> None:
        self.tokens.append(token)
        self._change.set()

    def on_failed(self, failure: Failure) -> None:
        self.failure = failure
        self._change.set()

    @property
    def over(self) -> bool:
        return self.failure is not None or bool(self.tokens and self.tokens[-1].finish)

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    async def until(self, condition, within_s: float = DEADLINE_S) -> None:
        """Until `condition(self)`."""
        async with asyncio.timeout(within_s):
            while not condition(self):
                self._change.clear()
                await self._change.wait()


async def pull(decode: Running, prefill: Running, request: str, prompt: list[int], sampling: Sampling) -> Heard:
    """Start a request whose prefill runs on `prefill`."""
    link = await decode.node.peers.get(("127.0.0.1", prefill.assembled.kv_port))
    heard = Heard()
    decode.node.decode.ask(link, request, prompt, sampling, heard)
    return heard


async def alone(worker: Running, request: str, prompt: list[int], sampling: Sampling) -> Heard:
    """Start a request that one worker serves alone."""
    heard = Heard()
    loop = asyncio.get_running_loop()
    worker.engine.submit(request, prompt, sampling, lambda token: loop.call_soon_threadsafe(heard.on_token, token))
    return heard


async def eventually(condition, what: str, within_s: float = DEADLINE_S) -> None:
    """Until `condition()` (sync or async) holds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                got = condition()
                if await got if asyncio.iscoroutine(got) else got:
                    return
                await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s:.0f} s: {what}")


@dataclass
class Process:
    """A `tandem-worker` of its own."""

    process: subprocess.Popen
    host: str
    port: int
    kv_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def kv_address(self) -> str:
        return f"{self.host}:{self.kv_port}"

    async def metrics(self) -> dict[str, float]:
        """Series → value."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    async def is_empty(self) -> bool:
        """Nothing runs, waits, is promised or quarantined; no page is in use."""
        seen = await self.metrics()
        names = (
            "tandem_num_requests_running",
            "tandem_num_requests_waiting",
            "tandem_kv_cache_usage_perc",
            "tandem_kv_quarantined_pages",
            'tandem_transfer_tickets{state="open"}',
            'tandem_transfer_tickets{state="quarantined"}',
        )
        return all(seen[name] == 0 for name in names)

    async def ready(self) -> None:
        """Until /ready says so."""

        async def asked() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with aiohttp.ClientSession() as session, session.get(f"{self.url}/ready") as response:
                    return response.status == 200
            return False

        await eventually(asked, f"{self.url} ready", 240.0)


def start_process(
    model: Path, name: str, host: str, ports: tuple[int, int], log: Path, *flags: str, key: str = KEY
) -> Process:
    """Start `tandem-worker`; the caller ends it."""
    command = [sys.executable, "-m", "tandem_worker.main", *flags_of(model, host, ports), *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **environment_of(name, key)}, stdout=out, stderr=subprocess.STDOUT
        )
    return Process(process, host, *ports, log)


def environment_of(name: str, key: str = KEY) -> dict[str, str]:
    """What a worker process is told beside its flags."""
    return {"TANDEM_TRANSFER_KEY": key, "POD_NAME": name, "OMP_NUM_THREADS": "1"}


def flags_of(model: Path, host: str, ports: tuple[int, int]) -> list[str]:
    """A worker of the tiny model at this address."""
    return [
        *("--model", f"file://{model}", "--served-name", "tiny", "--dtype", "float32", "--max-context", "512"),
        *("--host", host, "--port", str(ports[0]), "--kv-port", str(ports[1]), "--kv-memory-mib", "2"),
        *("--page-tokens", "4", "--chunk-tokens", "32", "--threads", "1"),
    ]


def prompt(label, count):
    return token_ids(label, count, 256)


def backends_of(worker):
    """Backend → 1 or 0, as /metrics has it."""
    lines = worker.service.metrics.exposition().decode().splitlines()
    found = [line.split('"') for line in lines if line.startswith("tandem_transfer_backend_info{")]
    return {parts[1]: float(parts[2].removeprefix("} ")) for parts in found}


def value_of(worker, name):
    lines = worker.service.metrics.exposition().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
