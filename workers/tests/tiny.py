"""A random Llama of a few kilobytes, as a model directory; and how tests run requests on an engine."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from tandem_worker.engine import Engine, EngineSettings, Sampling, Token, load_model
from tandem_worker.engine.config import config_from_json
from tandem_worker.engine.model import expected_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
SETTINGS = EngineSettings(
    dtype="float32", max_context=512, page_tokens=4, kv_memory_mib=2, chunk_tokens=32, max_batch=8, threads=1
)
DEADLINE_S = 400.0  # for a busy machine; nothing takes that long on an idle one


def write_tiny(directory: Path, **changes: object) -> Path:
    """A model directory with random weights, the same ones every time."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    shapes = expected_shapes(config_from_json({**CONFIG, "tie_word_embeddings": False}, "tiny", "tiny"))
    generator = torch.Generator().manual_seed(7)
    tensors = {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=generator) * 0.25
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def make_engine(directory: Path, **changes: object) -> Engine:
    """A started engine over the tiny model; `changes` to SETTINGS."""
    settings = replace(SETTINGS, **changes)
    engine = Engine(load_model(directory, settings), settings)
    engine.start()
    return engine


class Collector:
    """An `on_token` that keeps what comes and can be waited for."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self._ended = threading.Event()

    def __call__(self, token: Token) -> None:
        self.tokens.append(token)
        if token.finish is not None:
            self._ended.set()

    def ids(self) -> list[int]:
        """All ids, once the last is there."""
        assert self._ended.wait(DEADLINE_S), f"no end after {len(self.tokens)} tokens"
        return [token.id for token in self.tokens]


def generate(engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
    """All prompts at once; their output ids."""
    collectors = [Collector() for _ in prompts]
    for number, (prompt, collector) in enumerate(zip(prompts, collectors, strict=True)):
        engine.submit(f"r{number}", prompt, sampling, collector)
    return [collector.ids() for collector in collectors]


def wait_until_idle(engine: Engine) -> None:
    """Until the engine holds nothing; pages come back within a step."""
    waiting = threading.Event()
    for _ in range(2000):
        stats = engine.stats()
        if not stats.running and not stats.waiting:
            return
        waiting.wait(0.005)
    raise AssertionError(f"the engine did not get idle: {engine.stats()}")
