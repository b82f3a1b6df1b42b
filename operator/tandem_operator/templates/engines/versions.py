"""What versions of the engines can do, by their released sources. Where nobody tells the version, it is a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tandem_operator.api.v1alpha1 import InvalidResourceError

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_model import Engine

Version = tuple[int, ...]
# The first versions that have: the two halves of a split (vLLM's NixlConnector; SGLang's choice of a transfer backend),
# NIXL's backend by the connector's configuration, a replica over nodes, what to do where a transfer broke.
SPLIT, NIXL_BACKENDS, NODES, FAILURE_POLICY = "split", "nixl-backends", "nodes", "failure-policy"
SINCE: Final[dict[str, dict[str, Version]]] = {
    "vllm": {SPLIT: (0, 9, 0), NIXL_BACKENDS: (0, 11, 0), NODES: (0, 11, 1), FAILURE_POLICY: (0, 13, 0)},
    "sglang": {SPLIT: (0, 4, 6)},
}
# The engines' own images, wherever they are mirrored: their tags are the engines' versions. Another's tag is its own.
OWN_IMAGE: Final = re.compile(r"(?:^|/)(?:vllm-openai|sglang)[a-z-]*:v?(\d{1,4}(?:\.\d{1,4}){1,2})(?![\d.])")


def version_of(engine: Engine) -> Version | None:
    """As the resource says, else by the tag of one of the engines' own images; None where nothing tells."""
    words = engine.version
    if not words and (found := OWN_IMAGE.search(engine.image)):
        words = found[1]
    return tuple(int(part) for part in f"{words}.0".split(".")[:3]) if words else None  # 0.13 is 0.13.0


def has(engine: Engine, what: str) -> bool:
    """Can this version of the engine do it?"""
    version = version_of(engine)
    return version is None or version >= SINCE.get(engine.name, {}).get(what, ())


def check_version(spec: Spec) -> None:
    """Raises InvalidResourceError where the engine's version lacks what the resource needs, naming one that has it."""
    needs = {
        SPLIT: (spec.mode != "Colocated", "cannot serve prefill and decode apart"),
        NIXL_BACKENDS: (spec.engine.name == "vllm" and spec.transfer.rdma.mode == "EFA", "cannot be told to use EFA"),
    }
    for what, (is_needed, words) in needs.items():
        if is_needed and not has(spec.engine, what):
            raise InvalidResourceError([too_old(spec.engine, what, words)])


def too_old(engine: Engine, what: str, words: str) -> str:
    """Which version it is, what it cannot do, and which one can."""
    now, first = version_of(engine) or (), SINCE[engine.name][what]
    return f"spec.engine: {engine.name} {dotted(now)} {words}: {dotted(first)} is the first that can"


def dotted(version: Version) -> str:
    """`0.13.0`."""
    return ".".join(str(part) for part in version)
