"""Engine, tokenizer, transfer and HTTP side are put together here, and taken apart again."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tandem_worker.engine import (
    Engine,
    EngineError,
    EngineSettings,
    Grammars,
    LoadedModel,
    Tokenizer,
    load_model,
    load_tokenizer,
)
from tandem_worker.engine.device import choose_device, cuda_devices, kv_memory_mib
from tandem_worker.engine.parallel import Leader, join
from tandem_worker.engine.ranked import memory_of_ranks
from tandem_worker.ranks import Ranks, start_ranks
from tandem_worker.server.bridge import Bridge
from tandem_worker.server.defaults import Defaults, read_defaults
from tandem_worker.server.service import Loaded, Service
from tandem_worker.transfer.backends import make_backend
from tandem_worker.transfer.frames import Frames
from tandem_worker.transfer.handshake import LAYOUTS, Identity, new_incarnation
from tandem_worker.transfer.node import Node
from tandem_worker.transfer.ticket import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tandem_worker.settings import Settings

LOG = logging.getLogger(__name__)
LOOK_EVERY_S = 0.05
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """What takes long to make."""

    engine: Engine
    tokenizer: Tokenizer
    defaults: Defaults
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class Assembled:
    """A serving worker."""

    engine: Engine
    node: Node
    kv_port: int
    ranks: Ranks

    async def lost(self) -> str:
        """Until a part without which nobody is served has ended by itself; what to say of it."""
        return await until(lambda: self.ranks.lost or self.engine.thread.lost)

    async def stuck(self) -> str:
        """Until too many pages wait for what only this process's end ends; what to say of it."""
        return await until(lambda: self.node.stuck)

    async def stop(self) -> None:
        """End the connections, then the engine."""
        await self.node.stop()
        try:
            await asyncio.to_thread(self.engine.stop)
        except EngineError as error:
            LOG.warning("%s", error)
        await asyncio.to_thread(self.ranks.end)


async def until(look: Callable[[], str]) -> str:
    """What it says, once it says something."""
    while True:
        if said := look():
            return said
        await asyncio.sleep(LOOK_EVERY_S)


def load(settings: Settings) -> LoadedParts:
    """Model and tokenizer from the directory. Raises ModelLoadError. Runs beside the event loop."""
    sizes = EngineSettings(
        dtype=settings.dtype,
        max_context=settings.max_context,
        page_tokens=settings.page_tokens,
        kv_memory_mib=settings.kv_memory_mib,
        chunk_tokens=settings.chunk_tokens,
        max_batch=settings.max_batch,
        max_queue=settings.max_queue,
        threads=settings.threads,
        speculate=settings.speculate,
        tensor_parallel=settings.tensor_parallel,
        weights=settings.weights,
        kv=settings.kv,
        shared_memory=settings.backend == "shm",
    )
    sizes = replace(sizes, device=choose_device(settings.device, cuda_devices(), sizes))
    model, ranks = load_ranks(settings.model, sizes)
    sizes = replace(sizes, kv_memory_mib=kv_memory_mib(sizes))  # of what is free now, where nothing else was said
    tokenizer = load_tokenizer(settings.model)
    tokenizer.check_fits(model.info.vocab, str(settings.model))
    if not model.info.eos_ids:  # some repositories name it in the tokenizer's files alone
        model = replace(model, info=replace(model.info, eos_ids=tokenizer.eos_ids))
    grammars = Grammars(tokenizer.to_json, model.info.vocab, model.info.eos_ids)
    grammars.warm()  # it holds the interpreter for some tenths of a second: now, while nobody is served
    draft = None if settings.draft_model is None else load_model(settings.draft_model, replace(sizes, kv=""))
    return LoadedParts(Engine(model, sizes, grammars, draft), tokenizer, read_defaults(settings.model), ranks)


def load_ranks(path: Path, sizes: EngineSettings) -> tuple[LoadedModel, Ranks]:
    """The model, and the processes that have the rest of it. Raises ModelLoadError."""
    if sizes.tensor_parallel == 1:
        return load_model(path, sizes), Ranks()
    sizes = replace(sizes, kv_memory_mib=kv_memory_mib(sizes))
    if sizes.threads is None:  # each rank a share of the cores, or they would stand in each other's way
        sizes = replace(sizes, threads=max(1, (os.cpu_count() or 1) // sizes.tensor_parallel))
    memory = memory_of_ranks(sizes)
    ranks, address = start_ranks(path, sizes, memory.descriptor)
    try:
        model = load_model(path, sizes)
        join(0, sizes, address)
    except BaseException:
        ranks.end(told=False)
        raise
    LOG.info("tensor parallelism over %d ranks", sizes.tensor_parallel)
    return replace(model, leader=Leader(model.decoder, memory)), ranks


async def assemble(parts: LoadedParts, settings: Settings, service: Service) -> Assembled:
    """Start everything; the service is ready afterwards.

    Raises OSError where the kv port cannot be had, BackendError where the transfer backend cannot be used.
    """
    engine = parts.engine
    info = engine.info
    identity = Identity(
        model=settings.served_name,
        config_hash=info.config_hash,
        dtype=settings.dtype,
        page_tokens=settings.page_tokens,
        layers=info.layers,
        kv_heads=info.kv_heads,
        head_dim=info.head_dim,
        worker=settings.worker,
        incarnation=new_incarnation(),
        revision=settings.revision,
        tensor=settings.tensor_parallel,
        backend=settings.backend,
        layout=LAYOUTS[settings.kv],
    )
    frames = Frames(identity)
    post = Bridge(asyncio.get_running_loop()).post
    node = Node(
        engine,
        frames,
        make_backend(settings.backend, settings.transfer_dir, settings.host),
        identity,
        settings.key,
        post=post,
        meter=service.metrics,
        prefill_timeout_s=settings.prefill_timeout_s,
        local_host=None if settings.host in ANY_ADDRESS else settings.host,
        connections=settings.connections if settings.backend == "tcp" else 1,
    )
    kv_port = await node.start(settings.host, settings.kv_port)
    engine.start()
    decode = node.decode
    service.metrics.describe_worker(
        info,
        engine.stats,
        lambda: (decode.count(State.OPEN, State.FIRST), decode.count(State.QUARANTINED, State.CUT)),
        {"decode": decode.refusals, "prefill": node.prefill.refusals},
    )
    if settings.backend == "tcp":  # there is no other way, and none to fall back from
        service.metrics.linked("tcp", 1)
    service.become_ready(
        Loaded(
            engine=engine,
            tokenizer=parts.tokenizer,
            node=node,
            post=post,
            own_address=(settings.host, kv_port),
            max_context=settings.max_context,
            page_tokens=settings.page_tokens,
            max_queue=settings.max_queue,
            defaults=parts.defaults,
        )
    )
    return Assembled(engine, node, kv_port, parts.ranks)
