"""`python -m e2e.load`: drive one load, write a line a request, print the figures."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from e2e.load.addresses import checked
from e2e.load.drive import OnResult, drive
from e2e.load.plan import LoadPlan
from e2e.load.result import Result
from e2e.load.summary import Summary, summary


def main() -> None:
    """Run until the load is over, or SIGTERM or SIGINT, which end it early but in order."""
    parser = _arguments()
    given = parser.parse_args()
    try:
        plan = _plan(given)
    except ValueError as error:
        parser.error(str(error))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, recorder(given.jsonl) as on_result:
        results = runner.run(_run(plan, on_result))
    seen: Summary = summary(results, given.percentile, given.ttft_ms, given.tpot_ms)
    print(seen.words())
    for why in sorted({r.error for r in results if r.error})[:5]:
        print(f"  {why}")


def _plan(given: argparse.Namespace) -> LoadPlan:
    return LoadPlan(
        url=checked(given.url),
        model=given.model,
        rate=given.rate,
        seconds=given.seconds,
        prompt_tokens=given.prompt_tokens,
        output_tokens=given.output_tokens,
        seed=given.seed,
        unique_prompts=given.unique_prompts,
        chat=given.api == "chat",
        request_timeout_s=given.timeout,
        drain_s=given.drain,
        salt=given.salt,
    )


async def _run(plan: LoadPlan, on_result: OnResult) -> list[Result]:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await drive(plan, on_result, stop)


@contextmanager
def recorder(path: Path | None) -> Iterator[OnResult]:
    """Write each result as one line at once, so that others may follow the file."""
    if path is None:
        yield lambda _result: None
        return
    with path.open("w") as file:

        def write(result: Result) -> None:
            file.write(json.dumps(result.record()) + "\n")
            file.flush()

        yield write


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m e2e.load", description=__doc__)
    parser.add_argument("--url", required=True, help="http://ADDRESS:PORT; loopback and cluster addresses only")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests a second (Poisson)")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--prompt-tokens", "--prompt-words", type=int, required=True, help="words, about a token each")
    parser.add_argument("--output-tokens", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unique-prompts", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--api", choices=("chat", "completions"), default="chat")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    parser.add_argument("--drain", type=float, default=30.0, help="seconds for open requests after the last was sent")
    parser.add_argument("--salt", default="", help="other prompts at the same times: a second run finds nothing cached")
    parser.add_argument("--jsonl", type=Path, help="write a line a request here")
    parser.add_argument("--percentile", type=float, default=90.0)
    parser.add_argument("--ttft-ms", type=float, default=float("inf"), help="target, for the attainment")
    parser.add_argument("--tpot-ms", type=float, default=float("inf"), help="target, for the attainment")
    return parser


if __name__ == "__main__":
    main()
