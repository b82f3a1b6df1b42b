"""What the API server takes (OpenAPI, CEL, admission) the operator reads: bodies of the schema, some of them broken."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.harness.client import connected
from e2e.harness.kube import Kube
from e2e.tables.field_values import BESIDE
from e2e.tables.fields import FIELDS, base
from e2e.tables.paths import put
from e2e.tests.test_fuzz import field_value
from tandem_operator.api.v1alpha1 import InvalidResourceError, read
from tandem_operator.edges import kube as edge
from tandem_operator.edges.errors import ApiError
from tandem_operator.edges.kinds import KINDS, RESOURCE

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

BODIES = 200
NAMES = ("a", "x" * 46, "x" * 47, "a.b", "1a", "A")
# Mostly not what the schema wants; None: the field as null.
ODD = (None, "", "x" * 400, "5", 0, -1, 2**40, 1.5, True, [], {}, ["a"], [{}], {"a": "b"}, {"a": None})


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """The base with one to three fields as the schema has them; in half of the bodies one more that is odd."""
    body = base()
    for path in draw(st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=3, unique=True)):
        if path in BESIDE and draw(st.booleans()):
            BESIDE[path](body)
        put(body, path, draw(field_value(path)))
    if draw(st.booleans()):
        body["metadata"]["name"] = draw(st.sampled_from(NAMES))
    if draw(st.booleans()):
        put(body, draw(st.sampled_from(list(FIELDS))), draw(st.sampled_from(ODD)))
    return body


async def stored(kube: Kube, body: dict[str, Any]) -> dict[str, Any] | None:
    """The body as the API server would keep it, defaults filled in; None where it refuses it."""
    async with await connected(kube) as client:
        path = KINDS[RESOURCE].path(body["metadata"]["namespace"])
        try:
            return await edge.Kube(client)._ask("POST", path, {"dryRun": "All"}, body)
        except ApiError as error:
            if error.reason in {"Timeout", "Unreachable", "Unauthorized", "Forbidden"}:
                raise
            return None


def problem(body: dict[str, Any]) -> str:
    """Why the operator cannot read it; '' where it can."""
    try:
        read(body)
    except InvalidResourceError as error:
        return str(error)
    return ""


def test_what_the_api_server_takes_the_operator_reads(kube: Kube) -> None:
    seen: Counter[bool] = Counter()

    @given(bodies())
    @settings(max_examples=BODIES, suppress_health_check=list(HealthCheck))
    def compare(body: dict[str, Any]) -> None:
        kept = asyncio.run(stored(kube, body))
        seen[kept is not None] += 1
        assert kept is None or problem(kept) == "", f"taken by the API server, and not read: {body}"

    compare()
    assert min(seen[True], seen[False]) >= BODIES // 10, f"one-sided: {seen}"
