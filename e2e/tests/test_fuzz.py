"""Resources that hypothesis builds from the CRD's own schema: parsing and passes hold for all that it accepts."""

from __future__ import annotations

import asyncio
from typing import Any

import kubernetes_validate
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from e2e.tables.field_values import BESIDE, VALUES
from e2e.tables.fields import CHOSEN, FIELDS, SPEC, base, changes, settled
from e2e.tables.memory import Case, copied
from e2e.tables.paths import put
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import InvalidResourceError, read

EXAMPLES = 6  # of each property; the explore profile looks for more
KNOWN = frozenset(
    {"deployments", "services", "serviceaccounts", "rolebindings", "poddisruptionbudgets", "secrets", "configmaps"}
)
VERSION = "1.35"
COUNTED = ("spec.rollout.maxUnavailable",)  # beside it the table sets counts, and such stay when they were chosen
ODD = ("spec.pools[].name", "spec.pools[].role", "spec.mode")  # mostly refused by rules that cross fields
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
JSON = st.dictionaries(st.sampled_from(["name", "key", "kind", "x"]), st.one_of(TEXT, st.integers(0, 9), st.none()))


def values(schema: dict[str, Any]) -> st.SearchStrategy:
    """Whatever a structural schema accepts."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(0, 64), st.sampled_from(["100m", "1.5", "2Gi", "1e3", "3k"]))
    match schema.get("type"):
        case "string":
            pattern = schema.get("pattern")
            found = st.from_regex(pattern, fullmatch=True) if pattern else TEXT
            return found.filter(lambda s: schema.get("minLength", 0) <= len(s) <= schema.get("maxLength", 10**6))
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            return st.one_of(st.integers(low, min(high, low + 8)), st.integers(low, high))
        case "boolean":
            return st.booleans()
        case "array":
            keys = schema.get("x-kubernetes-list-map-keys")
            by = (lambda item: tuple(item.get(key) for key in keys)) if keys else None
            return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=3, unique_by=by)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return JSON
    if "additionalProperties" in schema:
        return st.dictionaries(
            st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True),
            values(schema["additionalProperties"]),
            max_size=2,
        )
    needed = schema.get("required", [])
    parts = {name: values(below) for name, below in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: parts[name] for name in needed},
        optional={name: part for name, part in parts.items() if name not in needed},
    )


def field_value(path: str) -> st.SearchStrategy:
    """Values of one field: of the schema, and of the field table where a schema cannot know what makes sense."""
    if path.endswith("hardware.accelerator"):
        return st.sampled_from(sorted(CATALOGUE))
    opaque = "preserve-unknown" in str(FIELDS[path])
    known = st.sampled_from(VALUES[path]) if path in VALUES else st.nothing()
    return known if opaque and path in VALUES else st.one_of(known, values(FIELDS[path]))


@st.composite
def resources(draw, chosen=True):
    """The base with up to five fields of any kind set; what the rules refuse is left out."""
    body = base()
    paths = [path for path in FIELDS if path not in ODD and (chosen or path not in CHOSEN)]
    for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=5, unique=True)):
        if path in BESIDE and (chosen or path not in COUNTED):
            BESIDE[path](body)
        put(body, path, draw(field_value(path)))
    try:
        read(body)
    except InvalidResourceError:
        assume(False)
    return body


@given(values(SPEC))
@settings(max_examples=EXAMPLES * 2, suppress_health_check=list(HealthCheck))
def test_what_the_schema_accepts_is_read_or_refused_in_words(spec: dict[str, Any]) -> None:
    body = {**base(), "spec": spec}
    try:
        found = read(body)
    except InvalidResourceError:
        return
    assert read({**body, "spec": found.spec.to_wire()}).spec == found.spec, "what is read is what is written"


@given(values(SPEC))
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_a_pass_over_whatever_the_schema_accepts_ends(spec: dict[str, Any]) -> None:
    case = Case({**base(), "spec": spec})
    asyncio.run(case.converge(passes=30))
    assert case.condition("Ready") is not None


@given(resources())
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_children_are_valid_and_idle_passes_write_nothing(body: dict[str, Any]) -> None:
    case = Case(body)
    asyncio.run(case.converge(passes=30))
    for (plural, _, _), item in case.kube.items.items():
        if plural in KNOWN:
            kubernetes_validate.validate(item, VERSION, strict=False)
    before = len(case.kube.writes)
    for _ in range(2):
        asyncio.run(case.one_pass())
    asyncio.run(case.restart())
    asyncio.run(case.one_pass())
    assert case.kube.writes[before:] == []


@given(resources(chosen=False), resources(chosen=False))
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_from_one_spec_to_another_ends_as_if_it_had_begun_there(one: dict[str, Any], other: dict[str, Any]) -> None:
    case = Case(one)
    asyncio.run(case.converge(passes=30))
    case.edit(copied(other["spec"]))
    moved, _ = asyncio.run(settled(case))
    fresh, _ = asyncio.run(settled(Case(other)))
    assert changes(moved, fresh) == ()
