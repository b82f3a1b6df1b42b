"""One question through the OpenAI API, with the `openai` client, streaming."""

from __future__ import annotations

import time
from dataclasses import dataclass

from openai import OpenAI


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and how."""

    text: str
    ttft_ms: float
    tpot_ms: float
    prefill_worker: str
    decode_worker: str
    kv_bytes: int


def ask(url: str, model: str, question: str, tokens: int = 48) -> Answer:
    """Ask, reading the stream as it comes; raise when the answer is empty or says nothing of its way."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)
    start = time.perf_counter()
    first = last = 0.0
    text, usage = "", None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            last = time.perf_counter()
            first = first or last
            text += piece
        usage = chunk.usage or usage
    if usage is None or not text:
        raise RuntimeError(f"no answer from {url}: text {text!r}, usage {usage}")
    way = (usage.model_extra or {}).get("tandem") or {}
    gaps = max(1, usage.completion_tokens - 1)
    return Answer(
        text.strip(),
        (first - start) * 1000,
        (last - first) / gaps * 1000,
        way.get("prefill_worker", ""),
        way.get("decode_worker", ""),
        int(way.get("kv_bytes", 0)),
    )
