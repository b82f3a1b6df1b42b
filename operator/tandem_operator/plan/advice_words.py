"""The advice in words: each figure with the arithmetic by which an engineer can check it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tandem_operator.plan.advise import WORTH, fastest, gpus_needed
from tandem_operator.plan.predict import CHUNK_TOKENS
from tandem_operator.plan.sizing import DOUBT, MOST_WORKERS, Group, Mode, Plan, Sizer
from tandem_operator.plan.words import ms_words

if TYPE_CHECKING:
    from tandem_operator.plan.advise import Advice, Outlook
    from tandem_operator.plan.crossing import Crossing
    from tandem_operator.plan.facts import Slo
    from tandem_operator.plan.predict import Forecast
    from tandem_operator.plan.sizing import Question
    from tandem_operator.plan.traffic import Lengths, Traffic

Line = tuple[str, str]  # what it is about, and the sentence


def verdict_words(advice: Advice) -> str:
    """The answer in one sentence or two."""
    best = advice.best
    if not advice.is_feasible:
        return f"no allowed plan meets the SLO; the closest is {plan_words(best)}. {impossible_words(advice)}"
    if advice.mode is Mode.DISAGGREGATED:
        return f"Disaggregate: a plan of {plan_words(best)} meets the SLO. {against_words(advice)}"
    return f"Do not disaggregate: a plan of {plan_words(best)} meets the SLO. {against_words(advice)}"


def against_words(advice: Advice) -> str:
    """What the other mode would take."""
    other, name = advice.other, "colocated" if advice.mode is Mode.DISAGGREGATED else "disaggregated"
    if other is None:
        return f"No {name} plan within {advice.question.budget_gpus} GPUs meets it."
    words = f"The best {name} plan, {plan_words(other)}, takes {difference_words(advice, other)}"
    if advice.mode is Mode.COLOCATED and advice.question.cost(other.plan.groups) < advice.question.cost(
        advice.best.plan.groups
    ):
        return f"{words}: less than the {100 * WORTH:.0f} % that a second pool and a transfer are worth."
    return f"{words}."


def difference_words(advice: Advice, other: Outlook) -> str:
    """`40 % more money`, `the same power`."""
    question = advice.question
    what = {"USD": "money", "W": "power", "GPUs": "GPUs"}[question.unit]
    share = 100 * (question.cost(other.plan.groups) / question.cost(advice.best.plan.groups) - 1)
    if abs(share) < 0.5:
        return f"the same {what}"
    return f"{abs(share):.0f} % {'more' if share > 0 else 'less'} {what}"


def plan_words(outlook: Outlook) -> str:
    """`2 prefill workers of 4 × h100-sxm and 3 decode workers of 4 × h200-sxm (20 GPUs, $69.60/h)`."""
    price = "" if outlook.usd_per_hour is None else f", ${outlook.usd_per_hour:,.2f}/h"
    return f"{groups_words(outlook.plan)} ({outlook.plan.gpus} GPU{'s' if outlook.plan.gpus > 1 else ''}{price})"


def groups_words(plan: Plan) -> str:
    """The workers of a plan."""
    if plan.chunk_tokens is not None:
        chunks = f" with chunks of {plan.chunk_tokens:,} tokens"
        return f"{count(plan.groups[0], 'colocated')}{chunks}"
    return " and ".join(count(group, role) for group, role in zip(plan.groups, ("prefill", "decode"), strict=True))


def count(group: Group, role: str) -> str:
    """`2 prefill workers of 4 × h100-sxm`."""
    return f"{group.workers} {role} worker{'s' if group.workers > 1 else ''} of {group.kind.name}"


def impossible_words(advice: Advice) -> str:
    """Why nothing meets the SLO, and the nearest that can be met."""
    question = advice.question
    slo, (first, steps) = question.slo, fastest(question)
    floors = (
        ("TTFT", slo.ttft_ms, first, f"one prompt of {question.traffic.computed_tokens:,.0f} tokens"),
        ("TPOT", slo.tpot_ms, steps, "one request's token"),
    )
    for name, target, (kind, least_ms), what in floors:
        if least_ms > target:
            words = (
                f"No number of workers reaches {name} {target:,} ms: {what} alone takes {least_ms:,.0f} ms on "
                f"{kind.name} with costs {100 * DOUBT:.0f} % above the data sheet"
            )
            return f"{words}; {closest_words(advice.closest)}."
    if (needed := gpus_needed(question, MOST_WORKERS)) is not None:
        words = f"The budget allows {question.budget_gpus} GPUs, {needed} would meet it"
        return f"{words}; {closest_words(advice.closest)}."
    return f"{closest_words(advice.closest).capitalize()}."


def closest_words(slo: Slo | None) -> str:
    """The nearest targets that the budget can meet."""
    if slo is None:
        return "no targets help: the load itself is beyond the budget"
    return f"closest feasible SLO: TTFT {slo.ttft_ms:,} ms, TPOT {slo.tpot_ms:,} ms at p{slo.percentile}"


# --- the arithmetic ---


def arithmetic(question: Question, plan: Plan) -> list[Line]:
    """How the workers of a plan come about, by the data sheet."""
    sizer = Sizer(question, 1.0)
    if plan.chunk_tokens is not None:
        return [("colocated", shared_words(sizer, plan)), *binding(question, plan)]
    prefill, decode = plan.groups
    return [
        ("prefill", prefill_words(sizer, prefill)),
        ("decode", decode_words(sizer, decode)),
        ("KV transfer", transfer_words(sizer, plan)),
        *binding(question, plan),
    ]


def prefill_words(sizer: Sizer, group: Group) -> str:
    """Seconds of a prompt, prompts a second, and how busy that makes the workers."""
    traffic, prior = sizer.question.traffic, group.kind.prior
    tokens = traffic.computed_tokens
    fixed, linear, attention = (1000 * part for part in prior.prefill_parts(tokens))
    side = sizer.prefill(group)
    each = traffic.sized_rate / (side.utilisation * group.workers) if side.utilisation else 0.0
    return (
        f"one prompt of {tokens:,.0f} tokens takes {fixed:.1f} (weights, launch) + {linear:.1f} (linear layers) + "
        f"{attention:.1f} (attention) = {fixed + linear + attention:.1f} ms on {group.kind.name}, or {each:.2f}/s; "
        f"{traffic.sized_rate:.2f} requests/s ÷ ({group.workers} × {each:.2f}) = {percent(side.utilisation)} busy"
    )


def decode_words(sizer: Sizer, group: Group) -> str:
    """The batch at which the steps make the tokens that are asked for, and what bounds it."""
    traffic, prior = sizer.question.traffic, group.kind.prior
    side, context = sizer.decode(group), traffic.context_tokens
    demand = traffic.sized_rate * max(traffic.output.mean - 1, 0)
    if side.batch is None:
        return f"{demand:,.0f} tokens/s are {percent(side.utilisation)} of what {count(group, 'decode')} can make"
    fixed, linear, reading = (1000 * part for part in prior.step_parts(1 + side.batch, context))
    step = fixed + linear + reading
    return (
        f"{traffic.sized_rate:.2f} requests/s × {traffic.output.mean - 1:,.0f} tokens = {demand:,.0f} tokens/s; a "
        f"request runs beside {side.batch:.1f} others of {context:,.0f} tokens, and a step takes {fixed:.1f} (weights, "
        f"launch) + {linear:.1f} (linear layers) + {reading:.1f} (KV) = {step:.1f} ms; {demand:,.0f} tokens/s × "
        f"{step:.1f} ms ÷ {group.workers} = {demand * step / 1000 / group.workers:.1f} requests on a worker; "
        f"{room_words(sizer, group)}, {percent(side.utilisation)} of the throughput there"
    )


def room_words(sizer: Sizer, group: Group) -> str:
    """`room for 64 (the batch limit; memory would hold 129)`."""
    memory = group.kind.prior.kv_room_tokens / max(sizer.question.traffic.context_tokens, 1.0)
    limit = sizer.question.max_batch
    if memory < limit:
        return f"room for {memory:.0f} (KV memory; the batch limit is {limit})"
    return f"room for {limit} (the batch limit; memory would hold {memory:,.0f})"


def shared_words(sizer: Sizer, plan: Plan) -> str:
    """What prompts take from the steps, and what that makes of both latencies."""
    group, chunk = plan.groups[0], plan.chunk_tokens or 1
    traffic, shared = sizer.question.traffic, sizer.shared(group, chunk)
    if shared.prefill_share >= 1:
        return (
            f"{traffic.sized_rate:.2f} requests/s ÷ {group.workers} × {1000 * shared.prompt_work_s:.1f} ms of a prompt "
            f"= {percent(shared.prefill_share)} of every second on {group.kind.name}"
        )
    step, work = 1000 * shared.plain_step_s, 1000 * shared.prompt_work_s
    chunks = "1 chunk" if shared.chunks == 1 else f"{shared.chunks} chunks"
    return (
        f"a prompt adds {work:.1f} ms to its worker's steps; {traffic.sized_rate:.2f} requests/s ÷ {group.workers} × "
        f"{work:.1f} ms = {percent(shared.prefill_share)} of its time, so a step of {shared.batch:.1f} requests, "
        f"{step:.1f} ms alone, takes {step:.1f} ÷ (1 - {shared.prefill_share:.2f}) = "
        f"{step / (1 - shared.prefill_share):.1f} ms, {1000 * shared.mean_step_s:.1f} ms behind the queue of its own "
        f"prompt, {1000 * shared.longest_step_s:.1f} ms with a chunk in it; a prompt takes {chunks} × "
        f"{step:.1f} + {work:.1f} = {1000 * shared.prompt_s:.1f} ms, and its worker is "
        f"{percent(shared.forecast.prefill.utilisation)} busy with prompts; {room_words(sizer, group)}"
    )


def transfer_words(sizer: Sizer, plan: Plan) -> str:
    """The KV of a prompt over the link, its visible part as a share of TTFT, and how slow the link may be."""
    prefill, traffic = plan.groups[0], sizer.question.traffic
    found = transfer(sizer, plan)
    ttft = sizer.forecast(plan).prefill.latency_ms
    share = "" if not ttft else f" = {100 * found['visible_ms'] / ttft:.2f} % of TTFT"
    last = min(CHUNK_TOKENS, traffic.computed_tokens)
    return (
        f"{traffic.computed_tokens:,.0f} tokens take {found['whole_ms']:.1f} ms over the link of {prefill.kind.name}, "
        f"beside {found['compute_ms']:.1f} ms of compute; what is waited for is the last {last:,.0f} tokens, "
        f"{found['visible_ms']:.2f} ms{share}; a link {found['slack']:.1f} times as slow would still keep up"
    )


def transfer(sizer: Sizer, plan: Plan) -> dict[str, float]:
    """The transfer of one prompt in ms: whole, visible, and the compute that hides it; `slack` = compute / whole."""
    prior, tokens = plan.groups[0].kind.prior, sizer.question.traffic.computed_tokens
    whole = 1000 * tokens * prior.transfer_token_s
    compute = 1000 * sum(prior.prefill_parts(tokens))
    visible = 1000 * min(tokens, CHUNK_TOKENS) * prior.transfer_token_s
    return {"whole_ms": whole, "visible_ms": visible, "compute_ms": compute, "slack": compute / max(whole, 1e-9)}


def binding(question: Question, plan: Plan) -> list[Line]:
    """What one worker fewer would break, with the costs for which the plan is sized."""
    sizer = Sizer(question, 1 + DOUBT)
    words = []
    for index, group in enumerate(plan.groups):
        fewer = with_fewer(plan, index)
        role = "colocated" if len(plan.groups) == 1 else ("prefill", "decode")[index]
        if fewer is None:
            words.append(f"the {role} role has one worker, the least there is")
            continue
        words.append(f"with {group.workers - 1} {role}: {missed_words(sizer.forecast(fewer), question.slo)}")
    return [("binding", f"at costs {100 * DOUBT:.0f} % above the data sheet, {'; '.join(words)}")]


def with_fewer(plan: Plan, index: int) -> Plan | None:
    """The plan with one worker less in a group; None where that is its last."""
    group = plan.groups[index]
    if group.workers < 2:
        return None
    groups = list(plan.groups)
    groups[index] = Group(group.kind, group.workers - 1)
    return replace(plan, groups=tuple(groups))


def missed_words(forecast: Forecast, slo: Slo) -> str:
    """`TTFT p95 912 ms, TPOT p95 31 ms, attainment 83 % of 95 %`."""
    ttft, tpot = ms_words(forecast.prefill.latency_ms), ms_words(forecast.decode.latency_ms)
    p = slo.percentile
    return f"TTFT p{p} {ttft}, TPOT p{p} {tpot}, attainment {100 * forecast.attainment:.0f} % of {p} %"


def percent(share: float) -> str:
    """`65 %`."""
    return f"{100 * share:.0f} %"


# --- signals, sureness, crossing points ---


def signals(advice: Advice) -> list[Line]:
    """What the answer rests on."""
    traffic = advice.question.traffic
    return [
        ("traffic", traffic_words(traffic)),
        ("lengths", lengths_words(traffic)),
        ("prefix reuse", reuse_words(traffic)),
        ("consistency", consistency_words(advice)),
    ]


def traffic_words(traffic: Traffic) -> str:
    """Rates and burstiness."""
    words = f"{traffic.sized_rate:.2f} requests/s"
    if traffic.requests is not None:
        words = (
            f"{traffic.requests:,} requests in {traffic.seconds or 0:,.0f} s, {traffic.mean_rate:.2f}/s on average; "
            f"sized for {traffic.sized_rate:.2f}/s, which 95 % of the minutes do not exceed"
        )
    return f"{words}; squared variation of the gaps {traffic.burstiness:.2f} (Poisson: 1)"


def lengths_words(traffic: Traffic) -> str:
    """Prompt and output lengths."""
    ratio = traffic.prompt.mean / max(traffic.output.mean, 1.0)
    return f"prompt {spread(traffic.prompt)}, output {spread(traffic.output)} tokens: {ratio:.1f} in for each one out"


def spread(lengths: Lengths) -> str:
    """`1,155 (p50 928, p99 4,000)`, or the mean alone where all are equal."""
    if lengths.p50 == lengths.p99:
        return f"{lengths.mean:,.0f}"
    return f"{lengths.mean:,.0f} (p50 {lengths.p50:,.0f}, p99 {lengths.p99:,.0f})"


def reuse_words(traffic: Traffic) -> str:
    """How much of the prompts is computed."""
    if traffic.reuse is None:
        known = "not known: the workload has no prefix hashes" if traffic.hits == 0 else "as given"
        return f"{known}; sized with {percent(traffic.hits)} of the prompt tokens cached"
    return (
        f"{100 * traffic.reuse.unbounded:.1f} % of the prompt tokens were seen before, "
        f"{100 * traffic.reuse.cached:.1f} % within the last {traffic.reuse.cache_tokens:,} tokens that one worker can "
        f"keep; sized with {percent(traffic.hits)}"
    )


def consistency_words(advice: Advice) -> str:
    """How much TPOT varies with the mode: the percentile, and the largest gap between two tokens."""
    question, words = advice.question, []
    sizer = Sizer(question, 1.0)
    for name, found in (("split", advice.split), ("colocated", advice.shared)):
        if found is None:
            words.append(f"{name}: none meets the SLO")
            continue
        plan, tpot = found.plan, ms_words(found.expected.decode.latency_ms)
        if plan.chunk_tokens is None:
            batch = 1 + (found.expected.decode.batch or 0.0)
            step = 1000 * sum(plan.groups[1].kind.prior.step_parts(batch, question.traffic.context_tokens))
            words.append(f"{name}: TPOT {step:.1f} ms on average, p{question.slo.percentile} {tpot}")
            continue
        shared = sizer.shared(plan.groups[0], plan.chunk_tokens)
        mean, longest = 1000 * shared.mean_step_s, 1000 * shared.longest_step_s
        words.append(
            f"{name}: {mean:.1f} ms on average, p{question.slo.percentile} {tpot}, single gaps up to {longest:.0f} ms"
        )
    return "; ".join(words)


def sureness_words(advice: Advice) -> str:
    """The interval of the forecast, and whether the answer holds over it."""
    best, p = advice.best, advice.question.slo.percentile
    low, middle, high = (best.by_sigma[sigma] for sigma in (-1, 0, 1))
    ttft = range_words(low.prefill.latency_ms, middle.prefill.latency_ms, high.prefill.latency_ms)
    tpot = range_words(low.decode.latency_ms, middle.decode.latency_ms, high.decode.latency_ms)
    words = (
        f"TTFT p{p} {ttft}, TPOT p{p} {tpot}, attainment {percent(middle.attainment)} ({percent(best.sure)} at the "
        f"slow end): every cost within {100 * DOUBT:.0f} % of the data sheet, the doubt of a prior that nothing has "
        "corrected"
    )
    if advice.is_sure:
        return f"{words}; the answer is the same over all of it"
    turned = [
        f"{mode_words(mode)} if workers are {100 * DOUBT:.0f} % {'slower' if sigma > 0 else 'faster'}"
        for sigma, mode in sorted(advice.mode_by_sigma.items())
        if sigma and mode is not advice.mode_by_sigma[0]
    ]
    return f"{words}; by the data sheet alone: {mode_words(advice.mode_by_sigma[0])}, but {' and '.join(turned)}"


def range_words(low: float | None, middle: float | None, high: float | None) -> str:
    """`312 ms (218 to 406 ms)`."""
    return f"{ms_words(middle)} ({ms_words(low)} to {ms_words(high)})"


def mode_words(mode: Mode | None) -> str:
    """The answer as a word."""
    return "nothing meets the SLO" if mode is None else str(mode).lower()


def crossing_words(found: tuple[Crossing, ...], traffic: Traffic) -> list[str]:
    """Where the answer turns, one sentence each."""
    if not found:
        return ["the answer is the same at every rate and prompt length that was tried (1/16 to 16 times)"]
    return [one_crossing(crossing, traffic) for crossing in found]


def one_crossing(crossing: Crossing, traffic: Traffic) -> str:
    """`at 3,000-token prompts: Colocated below 4.1 requests/s, Disaggregated from 4.2`."""
    low, high = sorted((crossing.near, crossing.far))
    below, above = (
        (crossing.mode_near, crossing.mode_far)
        if crossing.near < crossing.far
        else (crossing.mode_far, crossing.mode_near)
    )
    if crossing.axis == "rps":
        where, unit = f"with prompts of {traffic.prompt.mean:,.0f} tokens", "requests/s"
        low_words, high_words = f"{low:.3g}", f"{high:.3g}"
    else:
        where, unit = f"at {traffic.sized_rate:.3g} requests/s", "prompt tokens"
        low_words, high_words = f"{low:,.0f}", f"{high:,.0f}"
    return f"{where}: {mode_words(below)} up to {low_words} {unit}, {mode_words(above)} from {high_words}"
