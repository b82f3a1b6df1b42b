"""The advisor's answer for programs: all of it as JSON, and the resource that would carry it out as YAML."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from tandem_operator.api.v1alpha1 import DisaggregatedInference, read
from tandem_operator.cli.plan import usd_per_million
from tandem_operator.plan.advice_words import (
    arithmetic,
    crossing_words,
    signals,
    sureness_words,
    transfer,
    verdict_words,
)
from tandem_operator.plan.engine_args import with_chunk
from tandem_operator.plan.sizing import Mode, Sizer

if TYPE_CHECKING:
    from tandem_operator.api.base import Part
    from tandem_operator.api.spec_pool import Pool
    from tandem_operator.cli.plan import Consultation
    from tandem_operator.plan.advise import Outlook
    from tandem_operator.plan.predict import Forecast
    from tandem_operator.plan.sizing import Group, Plan, Question


def to_data(found: Consultation) -> dict[str, Any]:
    """The whole answer; latencies in ms at the SLO's percentile, None = beyond every bound."""
    advice, question = found.advice, found.question
    return {
        "mode": str(advice.mode),
        "feasible": advice.is_feasible,
        "sure": advice.is_sure,
        "mode_by_sigma": {str(sigma): mode and str(mode) for sigma, mode in advice.mode_by_sigma.items()},
        "message": verdict_words(advice),
        "how_sure": sureness_words(advice),
        "slo": asdict(question.slo),
        "traffic": asdict(question.traffic),
        "budget_gpus": question.budget_gpus,
        "best": plan_data(advice.best, question),
        "disaggregated": advice.split and plan_data(advice.split, question),
        "colocated": advice.shared and plan_data(advice.shared, question),
        "as_written": found.written and plan_data(found.written, question),
        "crossings": [asdict(turn) for turn in found.turns],
        "crossing_words": crossing_words(found.turns, question.traffic),
        "signals": dict(signals(advice)),
        "arithmetic": dict(arithmetic(question, advice.best.plan)),
    }


def plan_data(outlook: Outlook, question: Question) -> dict[str, Any]:
    """One plan with its forecasts."""
    plan = outlook.plan
    roles = ("both",) if plan.mode is Mode.COLOCATED else ("prefill", "decode")
    return {
        "mode": str(plan.mode),
        "chunk_tokens": plan.chunk_tokens,
        "gpus": plan.gpus,
        "workers": {role: group_data(group) for role, group in zip(roles, plan.groups, strict=True)},
        "usd_per_hour": outlook.usd_per_hour,
        "watts": outlook.watts,
        "usd_per_million_tokens": usd_per_million(outlook, question),
        "goodput_per_second": outlook.goodput,
        "expected": forecast_data(outlook.by_sigma[0]),
        "faster": forecast_data(outlook.by_sigma[-1]),
        "slower": forecast_data(outlook.by_sigma[1]),
        "transfer": transfer_data(plan, question),
    }


def group_data(group: Group) -> dict[str, Any]:
    """One role's workers."""
    return {"accelerator": group.kind.device.name, "tensor": group.kind.gpus, "replicas": group.workers}


def forecast_data(forecast: Forecast) -> dict[str, Any]:
    """Latencies, utilisations and attainment."""
    return {
        "ttft_ms": forecast.prefill.latency_ms,
        "tpot_ms": forecast.decode.latency_ms,
        "attainment": forecast.attainment,
        "prefill_utilisation": forecast.prefill.utilisation,
        "decode_utilisation": forecast.decode.utilisation,
        "decode_batch": forecast.decode.batch,
    }


def transfer_data(plan: Plan, question: Question) -> dict[str, Any] | None:
    """The KV transfer of one prompt; None for colocated workers, whose KV stays."""
    if plan.mode is Mode.COLOCATED:
        return None
    sizer = Sizer(question, 1.0)
    ttft = sizer.forecast(plan).prefill.latency_ms
    found = transfer(sizer, plan)
    return {**found, "share_of_ttft": found["visible_ms"] / ttft if ttft else None}


def resource_of(written: DisaggregatedInference, found: Consultation) -> DisaggregatedInference:
    """The resource with the advised mode and pools; model, targets, transfer and router as they were written.

    Replicas begin at the advised count; the maximum is twice that, within the budget, so that the operator can follow
    the load. Raises InvalidResourceError if the rest of the resource contradicts the advice.
    """
    body = as_written(written)
    body.pop("status", None)
    plan, spec = found.advice.best.plan, body["spec"]
    roles = ("Both",) if plan.mode is Mode.COLOCATED else ("Prefill", "Decode")
    spec["mode"] = str(plan.mode)
    spec["pools"] = [
        pool_body(role, group, written.spec.pools, found.question.budget_gpus)
        for role, group in zip(roles, plan.groups, strict=True)
    ]
    if found.question.objective != written.spec.rebalance.objective:
        spec["rebalance"] = {**spec.get("rebalance", {}), "objective": str(found.question.objective)}
    if plan.chunk_tokens is not None:
        if "roleFlips" in spec.get("rebalance", {}):
            spec["rebalance"].pop("roleFlips")
        engine = written.spec.engine
        spec["engine"] = {**spec.get("engine", {}), "args": with_chunk(engine.name, engine.args, plan.chunk_tokens)}
    return read(body)


def pool_body(role: str, group: Group, pools: list[Pool], budget: int) -> dict[str, Any]:
    """One pool; the template is that of the written pool of the same role and accelerator, as its image fits those."""
    accelerator = group.kind.device.name
    same = [p for p in pools if p.hardware.accelerator == accelerator]
    old = next((p for p in same if p.role == role), same[0] if same else None)
    most = max(min(2 * group.workers, budget // group.kind.gpus), group.workers)
    return {
        "name": "colocated" if role == "Both" else role.lower(),
        "role": role,
        "hardware": as_written(old.hardware) if old else {"accelerator": accelerator},
        "parallelism": {"tensor": group.kind.gpus},
        "replicas": {"min": 1, "initial": group.workers, "max": most},
        **({"template": template} if old and (template := as_written(old.template)) else {}),
    }


def as_yaml(resource: DisaggregatedInference, found: Consultation) -> str:
    """The manifest, below the answer as a comment."""
    text: str = yaml.safe_dump(as_written(resource), sort_keys=False, allow_unicode=True)
    return f"# {verdict_words(found.advice)}\n{text}"


def as_written(part: Part) -> dict[str, Any]:
    """The part as somebody wrote it: no defaults that the API would fill in."""
    return part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
