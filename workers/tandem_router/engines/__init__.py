"""One module for each kind of worker, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tandem_router.engines.base import Engine
from tandem_router.engines.sglang import SglangEngine
from tandem_router.engines.tandem import TandemEngine
from tandem_router.engines.vllm import VllmEngine

ENGINES: Final[Mapping[str, Callable[[], Engine]]] = {
    "tandem": TandemEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
}
