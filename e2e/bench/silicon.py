"""Measured TTFT and TPOT, a row each: read from a file of the form that ai-dynamo/aiconfigurator publishes."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Final

from tandem_operator.api.catalogue import find
from tandem_operator.plan.performance.config import BadConfigError
from tandem_operator.plan.performance.deployment import Deployment
from tandem_operator.plan.performance.engine import ENGINES, Engine
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.performance.precision import Precision, UnknownFormatError, format_of
from tandem_operator.plan.performance.public import base_name, find_model

if TYPE_CHECKING:
    from pathlib import Path

SYSTEMS: Final = {"b200_sxm": "b200", "gb200_sxm": "gb200", "a100_sxm": "a100-sxm-80gb"}
INFERENCEMAX: Final = ((1024, 1024), (1024, 8192), (8192, 1024))
SPARE_TOKENS: Final = 64  # InferenceMAX: (users + prompt + 64, rounded up to 64)
NEEDED: Final = ("backend", "model_path", "system", "mode", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")


class BadSiliconError(ValueError):
    """A file or row that cannot be read; names the row and the field."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One row: what ran, and what was measured (ms)."""

    number: int
    fields: dict[str, str]
    ttft_ms: float
    tpot_ms: float

    def text(self, name: str) -> str:
        """A field, empty where the file has none."""
        return (self.fields.get(name) or "").strip()

    def whole(self, name: str, default: int = 1) -> int:
        """A field that is a count. Raises BadSiliconError for what is no number."""
        text = self.text(name)
        try:
            return int(float(text or default)) or default
        except ValueError:
            raise BadSiliconError(f"row {self.number}: {name} is {text!r}; it must be a number") from None

    @property
    def pair(self) -> tuple[str, str]:
        """What is split as a whole: the model, by its shape, and the GPU."""
        return base_name(self.text("model_path")), self.text("system")

    @property
    def load(self) -> tuple[str, ...]:
        """What two rows must share to be deployed alike, besides their number of users."""
        return tuple(self.text(name) for name in ("backend", "system", "mode", "isl", "osl", "gemm_quant_mode"))

    @property
    def random_lengths(self) -> bool:
        """InferenceMAX runs three pairs of lengths and draws each between 0.8 and 1 of the nominal one.

        The other source, AIConfigurator's own runs, fixes them, and has paths of its own.
        """
        lengths = (self.whole("isl"), self.whole("osl"))
        return lengths in INFERENCEMAX and "aic-auto-gap-analysis" not in self.text("silicon_data_source")

    @property
    def rounds(self) -> int:
        """Requests by each user: both sources send ten times as many as are in flight."""
        return 10

    def budget(self, engine: Engine) -> int:
        """Tokens of a pass: sized by prompt and batch; SGLang, and vLLM in InferenceMAX, keep their default."""
        if engine.name == "trtllm" or (engine.mixes and not self.random_lengths):
            return self.whole("isl") + self.users + SPARE_TOKENS
        return engine.chunk_tokens

    def started(self, engine: Engine) -> Engine:
        """The engine with what InferenceMAX's launch scripts add to its defaults.

        SGLang: --scheduler-recv-interval 10, or 30 from 16 users on; TensorRT-LLM with attention data parallelism:
        prompts gather for up to 60 steps, so that all ranks begin together (attention_dp_config timeout_iters).
        """
        engine = replace(engine, chunk_tokens=self.budget(engine))
        if not self.random_lengths:
            return engine
        if engine.name == "sglang":
            return replace(engine, poll_steps=30 if self.users >= 16 else 10)
        if engine.name == "trtllm" and self.whole("attention_dp_size") > 1:
            return replace(engine, gather_steps=60)
        return engine

    @property
    def users(self) -> int:
        """Requests in flight: batch_size on each attention rank; disaggregated rows say it in their source."""
        if self.text("batch_size"):
            return self.whole("batch_size") * self.whole("attention_dp_size")
        said = self.text("silicon_data_source").partition("silicon_concurrency=")[2].partition(";")[0]
        if said.strip().isdigit():
            return int(said)
        return (
            self.whole("decode_batch_size") * self.whole("decode_num_workers") * self.whole("decode_attention_dp_size")
        )


def read_rows(path: Path) -> list[Measured]:
    """All rows of a file. Raises BadSiliconError where a column is missing or a measurement is no positive number."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise BadSiliconError(f"{path}: the header has no {missing[0]}; it needs {', '.join(NEEDED)}")
        return with_workers([measured(number, fields) for number, fields in enumerate(reader, 2)])


def with_workers(rows: list[Measured]) -> list[Measured]:
    """Fill in how many decode workers there were, from the nearest row that says it (by users).

    Many disaggregated rows leave it out, of the very runs that other rows describe in full. Where no row of the same
    engine, GPU and lengths says it, the field stays empty. Prefill workers are sized to keep up where a row is silent.
    """
    stated: dict[tuple[str, ...], list[Measured]] = {}
    for row in rows:
        if row.text("decode_num_workers"):
            stated.setdefault(row.load, []).append(row)
    return [row if row.text("decode_num_workers") else filled(row, stated.get(row.load, [])) for row in rows]


def filled(row: Measured, stated: list[Measured]) -> Measured:
    """The row with the decode workers of the stated row that has the most similar number of users."""
    if row.text("mode") != "disagg" or not stated:
        return row
    near = min(stated, key=lambda other: abs(log(other.users / row.users)))
    return replace(row, fields={**row.fields, "decode_num_workers": near.text("decode_num_workers")})


def measured(number: int, fields: dict[str, str]) -> Measured:
    """A row with its two measurements."""
    values = []
    for name in ("silicon_ttft_ms", "silicon_tpot_ms"):
        try:
            value = float(fields[name])
        except (TypeError, ValueError):
            value = 0.0
        if not value > 0:
            raise BadSiliconError(f"row {number}: {name} is {fields[name]!r}; it must be a positive number")
        values.append(value)
    return Measured(number, fields, *values)


def deployment_of(row: Measured, prefix: str = "") -> Deployment:
    """What ran; `prefix` picks a role's columns. Raises BadSiliconError for what the catalogue or the table lacks."""
    system = row.text("system")
    try:
        device = find(SYSTEMS.get(system, system.replace("_", "-")))
        model = find_model(row.text("model_path"))
        linear, experts = (
            format_of(row.text(n) or row.text("precision")) for n in ("gemm_quant_mode", "moe_quant_mode")
        )
    except (LookupError, BadConfigError, UnknownFormatError) as error:
        raise BadSiliconError(f"row {row.number}: {error}") from None
    if model.experts_only or (model.experts and experts == "float4_e2m1"):
        linear = "bfloat16"  # what such checkpoints leave unquantised
    if model.experts_only and experts == "float4_e2m1":
        experts = "mxfp4"  # published in MXFP4, whatever the column calls it
    engine = engine_of(row)
    quantised = "bfloat16" not in (linear, experts) and (engine.fp8_kv or not model.experts)
    quantised |= engine.fp8_kv and experts != "bfloat16"
    kv = "float8_e4m3" if quantised else "bfloat16"
    return Deployment(model, device, Precision(linear, experts, kv), parallel_of(row, prefix))


def engine_of(row: Measured) -> Engine:
    """The engine's rules. Raises BadSiliconError for one that is not known."""
    name = row.text("backend")
    if name not in ENGINES:
        raise BadSiliconError(f"row {row.number}: backend {name!r} is not known; known: {', '.join(ENGINES)}")
    return ENGINES[name]


def parallel_of(row: Measured, prefix: str = "") -> Parallelism:
    """The ranks. Where InferenceMAX's experts' ranks are given as n x n, n is meant: tp x ep was written for n GPUs.

    The same measurements stand in the file a second time with n GPUs (tp 4, ep 4 beside tp 16, moe_tp 4, moe_ep 4).
    """
    ranks = row.whole(prefix + "moe_tp_size") * row.whole(prefix + "moe_ep_size")
    names = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    tensor, pipeline, data, split, expert = (row.whole(prefix + name) for name in names)
    if not row.text(prefix + "attention_dp_size") and ranks > tensor and ranks % tensor == 0:
        data = ranks // tensor
    if row.random_lengths and split == expert > 1 and tensor * data == split * expert:
        tensor, data, split = (expert if tensor > 1 else 1), (expert if data > 1 else 1), 1
    if tensor * data % expert:
        expert = 1
    return Parallelism(tensor, pipeline, data, max(tensor * data // expert, 1), expert)
