"""The names of docs/reference/borders.md, all of them there, with figures that follow the work."""

import aiohttp
import pytest

from workers.tests.server.test_api import CHAT, CHAT_PATH, post

COUNTERS = ["prefix_cache_queries_total", "prefix_cache_hits_total", "prefill_tokens_total",
            "prefill_busy_seconds_total", "decode_steps_total", "decode_busy_seconds_total", "decode_tokens_total",
            "num_preemptions_total", "kv_transfer_copied_bytes_total",
            'kv_transfer_bytes_total{direction="sent"}', 'kv_transfer_bytes_total{direction="received"}']  # fmt: skip
GAUGES = ["num_requests_running", "num_requests_waiting", "prefill_waiting_tokens", "kv_cache_usage_perc",
          'transfer_tickets{state="open"}', 'transfer_tickets{state="quarantined"}', "kv_quarantined_pages",
          'transfer_backend_info{backend="tcp"}']  # fmt: skip
HISTOGRAMS = ["time_to_first_token_seconds", "request_time_per_output_token_seconds", "inter_token_latency_seconds",
              "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
              "kv_transfer_seconds", "kv_transfer_ttft_share"]  # fmt: skip


async def scrape(worker):
    async with aiohttp.ClientSession() as session, session.get(worker.url + "/metrics") as got:
        lines = [line for line in (await got.text()).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.mark.parametrize("name", [*COUNTERS, *GAUGES, *[f"{one}_count" for one in HISTOGRAMS]])
async def test_every_series_is_there(worker, name):
    assert f"tandem_{name}" in await scrape(worker)


async def test_the_model_s_sizes_are_labels(worker):
    (name,) = [name for name in await scrape(worker) if name.startswith("tandem_model_info")]
    info = worker.engine.info
    for label in ("parameters", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "vocab", "element_bytes"):
        assert f'{label}="{getattr(info, label)}"' in name


async def test_a_pair_s_work_is_counted_on_the_right_side(pair):
    prefill, decode = pair
    await post(decode, CHAT_PATH, CHAT, {"x-tandem-prefill": prefill.kv_address})
    one, other = await scrape(prefill), await scrape(decode)
    sent = one['tandem_kv_transfer_bytes_total{direction="sent"}']
    assert sent == other['tandem_kv_transfer_bytes_total{direction="received"}'] > 0
    assert one["tandem_prefill_tokens_total"] > 0 == other["tandem_prefill_tokens_total"]
    assert other["tandem_decode_tokens_total"] == 7 > 0 == one["tandem_decode_tokens_total"]
    for name in ("request_queue_time_seconds", "request_prefill_time_seconds"):
        assert one[f"tandem_{name}_count"] == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "kv_transfer_seconds"):
        assert other[f"tandem_{name}_count"] == 1
    ttft, share = (other[f"tandem_{name}_sum"] for name in ("time_to_first_token_seconds", "kv_transfer_ttft_share"))
    # Of the request's way through the transfer alone, which is a little shorter than from its arrival here.
    assert share >= other["tandem_kv_transfer_seconds_sum"] / ttft > 0
    assert other["tandem_inter_token_latency_seconds_count"] == 7
    assert 'tandem_time_to_first_token_seconds_bucket{le="2560.0"}' in other
