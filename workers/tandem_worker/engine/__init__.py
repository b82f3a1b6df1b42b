"""The serving engine: model, paged KV, continuous batching, sampling. One thread computes; callers only talk to it."""

from tandem_worker.engine.engine import Engine
from tandem_worker.engine.grammar import Grammars
from tandem_worker.engine.model import LoadedModel, load_model
from tandem_worker.engine.request import (
    EngineError,
    EngineSettings,
    EngineStats,
    InvalidRequestError,
    ModelInfo,
    ModelLoadError,
    PrefillSink,
    PromptTooLongError,
    QueueFullError,
    Reservation,
    ReservationError,
    Sampling,
    Shortage,
    Token,
)
from tandem_worker.engine.tokenizer import DecodeStream, Tokenizer, load_tokenizer

__all__ = [
    "DecodeStream",
    "Engine",
    "EngineError",
    "EngineSettings",
    "EngineStats",
    "Grammars",
    "InvalidRequestError",
    "LoadedModel",
    "ModelInfo",
    "ModelLoadError",
    "PrefillSink",
    "PromptTooLongError",
    "QueueFullError",
    "Reservation",
    "ReservationError",
    "Sampling",
    "Shortage",
    "Token",
    "Tokenizer",
    "load_model",
    "load_tokenizer",
]
