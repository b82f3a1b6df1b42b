"""The section "Engine" of docs/reference/performance.md, from the runs as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from e2e.bench.performance import put_text

if TYPE_CHECKING:
    from collections.abc import Iterator

MUST: Final = {"prefill 512": 1.13, "prefill 2048": 1.36, "decode 1": 1.56, "decode 8": 1.84, "decode 32": 2.49}
COUNTED: Final = ("transformers", "openvino-genai", "llama.cpp")  # bf16 weights as they are; the rest is shown apart


def write_section(runs: dict[str, Any]) -> None:
    """The tables of all models that were run; what stands around them is written by hand."""
    put_text("engine", "\n".join(line for name, run in runs.items() for line in section(name, run)) + "\n")


def section(name: str, run: dict[str, Any]) -> Iterator[str]:
    """One model's table."""
    peers = [peer for peer in run["rates"] if peer != "tandem"]
    limits = run["limits"]
    clock = "tokens a second" if run["clock"] == "wall" else "tokens a second of CPU time (a busy machine)"
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    yield f"**{name}**, {threads}: {clock}. `{run['command']}`, {run['date']}, {run['machine']}."
    yield f"In the same run: read stream {limits['read_gb_s']:.1f} GB/s, product"
    yield f"{limits['gemm_gflop_s']:.0f} GFLOP/s."
    yield ""
    yield f"| cell | tandem | {' | '.join(peers)} | of transformers | must | of the best peer | of the limit |"
    yield "|---" * (len(peers) + 6) + "|"
    for cell, rate in run["rates"]["tandem"].items():
        theirs = [run["rates"][peer].get(cell, 0.0) for peer in peers]
        counted = max(run["rates"][peer].get(cell, 0.0) for peer in peers if peer in COUNTED)
        ratio, must = rate / run["rates"]["transformers"][cell], MUST.get(cell, 0.0)
        yield (
            f"| {cell} | {rate:,.0f} | {' | '.join(f'{one:,.0f}' for one in theirs)} | {ratio:.2f} "
            f"| {must:.2f} {'met' if ratio >= must else '**missed**'} | {rate / counted:.2f} | {share(run, cell):.0%} |"
        )
    yield ""


def share(run: dict[str, Any], cell: str, peer: str = "tandem") -> float:
    """The time that the machine's own rates allow, over the time that the cell took."""
    work, limits = run["work"][cell], run["limits"]
    least = max(work["flop"] / limits["gemm_gflop_s"], work["bytes"] / limits["read_gb_s"]) / 1e9
    return float(least * run["rates"][peer][cell] / work["tokens"])
