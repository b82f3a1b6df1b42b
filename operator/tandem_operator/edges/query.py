"""One PromQL query for all resources: a union of branches, each marked with the `fact` that it is.

What clients get is the router's word, whatever the engine. Of workers' own metrics, vLLM and SGLang have those below;
neither has busy time or tokens that wait, so these facts stay unknown there.
"""

from __future__ import annotations

BY = "namespace, resource"
MODEL_LABELS = "parameters, layers, hidden_size, heads, kv_heads, head_dim, vocab, element_bytes"


# A Tandem metric, and what has its meaning elsewhere.
ALIKE = {
    "tandem_num_requests_running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "tandem_num_requests_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "tandem_prefill_tokens_total": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "tandem_decode_tokens_total": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "tandem_decode_steps_total": ("vllm:iteration_tokens_total_count",),  # a histogram with one entry a step
}


def escaped(value: str) -> str:
    r"""A label value between double quotes in PromQL: `\`, `"` and line ends would otherwise end the string."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def branches(window_s: int, namespace: str) -> dict[str, str]:
    """The expression of each fact; rates are per second over `window_s`. namespace '' = all."""
    only = 'resource!=""' + (f',namespace="{escaped(namespace)}"' if namespace else "")

    def series(metric: str) -> str:
        if metric not in ALIKE:
            return f"{metric}{{{only}}}"
        return f'{{__name__=~"{"|".join((metric, *ALIKE[metric]))}",{only}}}'

    def rate(metric: str, *by: str) -> str:
        return f"sum by ({', '.join((BY, *by))}) (rate({series(metric)}[{window_s}s]))"

    def now(metric: str, *by: str) -> str:
        return f"sum by ({', '.join((BY, *by))}) ({series(metric)})"

    return {
        "up": now("up"),
        "ttft": rate("tandem_router_time_to_first_token_seconds_bucket", "le"),
        "tpot": rate("tandem_router_time_per_output_token_seconds_bucket", "le"),
        "slo": rate("tandem_router_slo_requests_total", "met"),
        "arrivals": rate("tandem_router_arrivals_total"),
        "held": now("tandem_router_held_requests"),
        "arrival_squares": rate("tandem_router_arrivals_squared_total"),
        "arrival_bin": f"max by ({BY}) ({series('tandem_router_arrival_bin_seconds')})",
        "routers": f"count by ({BY}) ({series('tandem_router_arrival_bin_seconds')})",
        "requests": rate("tandem_router_requests_total"),
        "prompt_tokens": rate("tandem_router_prompt_tokens_total"),
        "output_tokens": rate("tandem_router_output_tokens_total"),
        "prompts": rate("tandem_router_prompts_total"),
        "cached_tokens": rate("tandem_router_cached_tokens_total"),
        "prompt_squares": rate("tandem_router_prompt_tokens_squared_total"),
        "prefill_busy": rate("tandem_prefill_busy_seconds_total", "role", "pool"),
        "prefill_tokens": rate("tandem_prefill_tokens_total", "role", "pool"),
        "decode_busy": rate("tandem_decode_busy_seconds_total", "role", "pool"),
        "decode_tokens": rate("tandem_decode_tokens_total", "role", "pool"),
        "decode_steps": rate("tandem_decode_steps_total", "role", "pool"),
        "waiting": now("tandem_num_requests_waiting", "role", "pool"),
        "waiting_tokens": now("tandem_prefill_waiting_tokens", "role", "pool"),
        # A vLLM worker has a series for each of its data-parallel engines.
        "workers": f"count by ({BY}, role) ({now('tandem_num_requests_running', 'role', 'pod')})",
        "load": f"{now('tandem_num_requests_running', 'pod')} + {now('tandem_num_requests_waiting', 'pod')}",
        "model": f"max by ({BY}, {MODEL_LABELS}) ({series('tandem_model_info')})",
        "bandwidth": f"avg by ({BY}) ({series('tandem_transfer_bandwidth_bytes_per_second')})",
        "copied": rate("tandem_kv_transfer_copied_bytes_total"),
        "backend": f"max by ({BY}, backend) ({series('tandem_transfer_backend_info')})",
    }


def union(window_s: int, namespace: str = "") -> str:
    """The whole query. `or` keeps all branches apart, since no two have the same `fact`."""
    marked = (
        f'label_replace({expression}, "fact", "{fact}", "", "")'
        for fact, expression in branches(window_s, namespace).items()
    )
    return " or ".join(marked)
