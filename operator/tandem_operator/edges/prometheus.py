"""Prometheus: one instant query an interval for all resources, typed facts out of it."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import socket
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import prometheus_api_client
import requests
import urllib3
from pydantic import BaseModel, TypeAdapter, ValidationError

from tandem_operator.edges.errors import PrometheusError
from tandem_operator.edges.query import union

TIMEOUT_S = 5.0  # one socket operation
DEADLINE_S = 15.0  # the whole answer
MAX_BYTES = 64 * 1024 * 1024
CHUNK = 64 * 1024


class Sample(BaseModel):
    """One line of an instant vector."""

    metric: dict[str, str]
    value: tuple[float, str]  # Unix seconds, number as text

    @property
    def number(self) -> float | None:
        """None for NaN: a ratio over no traffic is no measurement."""
        number = float(self.value[1])
        return None if number != number else number  # noqa: PLR0124 NaN alone differs from itself


SAMPLES = TypeAdapter(list[Sample])


BY_POOL = frozenset(
    {
        "prefill_busy",
        "prefill_tokens",
        "decode_busy",
        "decode_tokens",
        "decode_steps",
        "waiting",
        "waiting_tokens",
    }
)
LABEL_OF = {
    "ttft": "le",
    "tpot": "le",
    "slo": "met",
    "load": "pod",
    "backend": "backend",
} | dict.fromkeys((*BY_POOL, "workers"), "role")


@dataclass(slots=True)
class Facts:
    """What one query said about one resource: (fact, label value) -> number; '' where a fact has no label."""

    numbers: dict[tuple[str, str], float] = field(default_factory=dict)
    model: dict[str, str] | None = None
    pools: dict[tuple[str, str, str], float] = field(default_factory=dict)  # (fact, role, pool)

    def take(self, fact: str, labels: dict[str, str], number: float) -> None:
        """Keep a number by its fact's label; what is told by pool is kept by pool too, and added up by role."""
        key = (fact, labels.get(LABEL_OF.get(fact, ""), ""))
        if fact in BY_POOL:
            self.pools[fact, key[1], labels.get("pool", "")] = number
            number += self.numbers.get(key, 0.0)
        self.numbers[key] = number

    def number(self, fact: str, label: str = "") -> float | None:
        """A number, or None where Prometheus had none."""
        return self.numbers.get((fact, label))

    def labelled(self, fact: str) -> dict[str, float]:
        """All numbers of a fact by their label's value (`le`, `met`, `role`, `pod` or `backend`)."""
        return {label: number for (name, label), number in self.numbers.items() if name == fact}


Reading = dict[tuple[str, str], Facts]  # by (namespace, resource)


def parse(samples: list[Any]) -> Reading:
    """Facts by resource; raise PrometheusError where the answer is not an instant vector."""
    try:
        lines = SAMPLES.validate_python(samples)
    except ValidationError as error:
        raise PrometheusError("Refused", f"not an instant vector: {error.error_count()} wrong fields") from error
    reading: Reading = {}
    for line in lines:
        labels = line.metric
        facts = reading.setdefault((labels.get("namespace", ""), labels.get("resource", "")), Facts())
        fact = labels.get("fact", "")
        if fact == "model":
            facts.model = labels
        elif (number := line.number) is not None:
            facts.take(fact, labels, number)
    return reading


def refuse_local_link(url: str) -> None:
    """Raise PrometheusError for an address where clouds keep credentials (link-local), also behind a name."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PrometheusError("Refused", "the Prometheus address is no http(s) URL")
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PrometheusError("Unreachable", "the name of the Prometheus address does not resolve") from error
    if any(ipaddress.ip_address(str(entry[4][0]).split("%")[0]).is_link_local for entry in found):
        raise PrometheusError("Refused", "the Prometheus address is link-local; metadata services live there")


class PlainSession(requests.Session):
    """A session without proxies or credentials of the environment, without redirects, with a cap on size and time."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """As requests has it; the body is read here, so that a large or slow one is refused while it comes.

        What is no 200 is refused by its status alone: its body may be anything, and events are read by many.
        """
        end = time.monotonic() + DEADLINE_S
        with super().request(*args, **{**options, "allow_redirects": False, "stream": True}) as answer:
            if answer.status_code != requests.codes.ok:
                raise PrometheusError("Refused", f"Prometheus answered with HTTP status {answer.status_code}")
            body = bytearray()
            for chunk in answer.iter_content(CHUNK):
                body += chunk
                if len(body) > MAX_BYTES or time.monotonic() > end:
                    raise PrometheusError("Refused", f"the answer is over {MAX_BYTES} bytes or {DEADLINE_S:.0f} s")
            whole = requests.Response()
            whole.status_code, whole.headers, whole.encoding = answer.status_code, answer.headers, "utf-8"
            whole.raw = io.BytesIO(bytes(body))
            return whole


class Prometheus:
    """The one Prometheus that the operator asks; its address is the cluster operator's setting."""

    def __init__(self, url: str, window_s: int, namespace: str = "") -> None:
        self._url = url.rstrip("/")
        self._query = union(window_s, namespace)
        self._client = prometheus_api_client.PrometheusConnect(
            url=self._url, session=PlainSession(), timeout=TIMEOUT_S, retry=urllib3.Retry(total=0, redirect=0)
        )

    async def ask(self) -> Reading:
        """Facts of all resources, now; raise PrometheusError where there is no usable answer."""
        try:
            async with asyncio.timeout(DEADLINE_S + 2 * TIMEOUT_S):
                return await asyncio.to_thread(self._ask)
        except TimeoutError as error:
            raise PrometheusError("Unreachable", "Prometheus did not answer in time") from error

    def _ask(self) -> Reading:
        refuse_local_link(self._url)
        try:
            answer = self._client.custom_query(self._query)
        except (prometheus_api_client.PrometheusApiClientException, ValueError, KeyError, TypeError) as error:
            # Before the transport's errors, since requests' JSON error is one of those as well.
            raise PrometheusError("Refused", f"Prometheus answered something else: {type(error).__name__}") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise PrometheusError("Unreachable", f"Prometheus does not answer: {type(error).__name__}") from error
        return parse(answer)
