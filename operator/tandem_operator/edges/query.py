"""One PromQL query for all resources: a union of branches, each marked with the `fact` that it is."""

from __future__ import annotations

BY = "namespace, resource"
MODEL_LABELS = "parameters, layers, hidden_size, heads, kv_heads, head_dim, vocab, element_bytes"


def escaped(value: str) -> str:
    r"""A label value between double quotes in PromQL: `\`, `"` and line ends would otherwise end the string."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def branches(window_s: int, namespace: str) -> dict[str, str]:
    """The expression of each fact; rates are per second over `window_s`. namespace '' = all."""
    only = '{resource!=""' + (f',namespace="{escaped(namespace)}"' if namespace else "") + "}"

    def rate(metric: str, *by: str) -> str:
        return f"sum by ({', '.join((BY, *by))}) (rate({metric}{only}[{window_s}s]))"

    def now(metric: str, *by: str) -> str:
        return f"sum by ({', '.join((BY, *by))}) ({metric}{only})"

    return {
        "up": now("up"),
        "ttft": rate("tandem_router_time_to_first_token_seconds_bucket", "le"),
        "tpot": rate("tandem_router_time_per_output_token_seconds_bucket", "le"),
        "slo": rate("tandem_router_slo_requests_total", "met"),
        "arrivals": rate("tandem_router_arrivals_total"),
        "requests": rate("tandem_router_requests_total"),
        "prompt_tokens": rate("tandem_router_prompt_tokens_total"),
        "output_tokens": rate("tandem_router_output_tokens_total"),
        "prefill_busy": rate("tandem_prefill_busy_seconds_total", "role"),
        "prefill_tokens": rate("tandem_prefill_tokens_total", "role"),
        "decode_busy": rate("tandem_decode_busy_seconds_total", "role"),
        "decode_tokens": rate("tandem_decode_tokens_total", "role"),
        "decode_steps": rate("tandem_decode_steps_total", "role"),
        "waiting": now("tandem_num_requests_waiting", "role"),
        "waiting_tokens": now("tandem_prefill_waiting_tokens", "role"),
        "workers": f"count by ({BY}, role) (tandem_num_requests_running{only})",
        "load": f"{now('tandem_num_requests_running', 'pod')} + {now('tandem_num_requests_waiting', 'pod')}",
        "model": f"max by ({BY}, {MODEL_LABELS}) (tandem_model_info{only})",
        "backend": f"max by ({BY}, backend) (tandem_transfer_backend_info{only})",
    }


def union(window_s: int, namespace: str = "") -> str:
    """The whole query. `or` keeps all branches apart, since no two have the same `fact`."""
    marked = (
        f'label_replace({expression}, "fact", "{fact}", "", "")'
        for fact, expression in branches(window_s, namespace).items()
    )
    return " or ".join(marked)
