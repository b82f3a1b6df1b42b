"""The catalogue: plausible figures, a ConfigMap that reads back, errors that name what is wrong."""

import json
import re

import pytest

from tandem_operator.api.catalogue import (
    CATALOGUE,
    GPU,
    BadCatalogueError,
    UnknownAcceleratorError,
    UnknownDTypeError,
    find,
    from_data,
    to_data,
)
from tandem_operator.api.conditions import CONDITIONS, REASONS, is_known
from tandem_operator.api.node_labels import (
    COREWEAVE,
    COREWEAVE_CLASS,
    EKS_AUTO,
    GKE,
    KARPENTER,
    PRODUCT_LABEL,
    SOURCES,
    TYPE,
)

NAMES = [
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h200-sxm",
    "h200-nvl",
    "a100-sxm-80gb",
    "a100-sxm-40gb",
    "a100-pcie-80gb",
    "a100-pcie-40gb",
    "b200",
    "gb200",
    "l40s",
    "l4",
    "mi300x",
    "cpu",
]


def test_names():
    assert list(CATALOGUE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_plausible(name):
    entry = find(name)
    assert entry.peak("bfloat16") > 0
    assert entry.peak("float32") > 0
    assert 1e9 < entry.memory_bytes < 1e12
    assert entry.link < entry.bandwidth
    assert entry.price_per_hour > 0
    assert (entry.resource == GPU) == bool(entry.products)
    assert all(entry.labels.values()), "a key without a value would match no node"
    assert entry.scale_up < entry.bandwidth
    assert (entry.domain > 1) == (entry.scale_up > 0)
    assert entry.generation


@pytest.mark.parametrize(
    ("name", "dtype", "times_bf16"),
    [
        pytest.param("h100-sxm", "float8_e4m3", 2, id="Hopper, FP8"),
        pytest.param("b200", "float4_e2m1", 4, id="Blackwell, FP4"),
        pytest.param("a100-sxm-80gb", "int8", 2, id="Ampere, INT8"),
        pytest.param("mi300x", "float8_e4m3", 2, id="CDNA 3, FP8"),
    ],
)
def test_narrow_formats_are_faster(name, dtype, times_bf16):
    assert find(name).peak(dtype) == pytest.approx(times_bf16 * find(name).peak("bfloat16"), rel=0.03)


def test_an_entry_without_the_newer_fields_still_reads():
    fields = json.loads(to_data()["l4"])
    for name in ("scale_up", "domain", "generation", "labels"):
        del fields[name]
    entry = from_data({"l4": json.dumps(fields)})["l4"]
    assert (entry.scale_up, entry.domain, entry.generation, entry.labels) == (0.0, 1, "", {})


def test_h200_is_the_decode_device():
    h100, h200 = find("h100-sxm"), find("h200-sxm")
    assert h100.peak("bfloat16") == h200.peak("bfloat16")
    assert h200.bandwidth / h100.bandwidth == pytest.approx(1.43, abs=0.01)
    assert h100.peak("bfloat16") / h100.price_per_hour > h200.peak("bfloat16") / h200.price_per_hour


def test_no_label_tells_two_entries_at_once():
    told = [(key, value) for entry in CATALOGUE.values() for key, values in entry.labels.items() for value in values]
    assert len(told) == len(set(told))
    products = [product for entry in CATALOGUE.values() for product in entry.products]
    assert len(products) == len(set(products))


# What each cloud sells, and how to tell its values among those of a key that several clouds share.
CLOUDS = {
    "GKE": ((GKE,), "", {"h100-sxm", "h200-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "b200", "gb200", "l4"}),
    "EKS": (
        (TYPE,),
        r"[pg]\w*(-g?b200)?\.\d*xlarge",
        {"h100-sxm", "h200-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "b200", "gb200", "l40s", "l4"},
    ),
    "AKS": (
        (TYPE,),
        r"Standard_N.*",
        {"h100-sxm", "h100-nvl", "h200-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "a100-pcie-80gb", "gb200", "mi300x"},
    ),
    "CoreWeave": (
        (COREWEAVE, COREWEAVE_CLASS),
        "",
        {"h100-sxm", "h100-pcie", "h200-sxm", "b200", "gb200", "l40s"}
        | {f"a100-{form}-{size}gb" for form in ("sxm", "pcie") for size in (40, 80)},
    ),
    "OKE": (
        (TYPE,),
        r"BM\.GPU.*",
        {"h100-sxm", "h200-sxm", "a100-sxm-80gb", "a100-sxm-40gb", "b200", "gb200", "l40s", "mi300x"},
    ),
}


@pytest.mark.parametrize(("keys", "form", "sold"), CLOUDS.values(), ids=CLOUDS)
def test_every_cloud_finds_what_it_sells(keys, form, sold):
    def told(entry):
        values = [value for key in keys for value in entry.labels.get(key, ())]
        return [value for value in values if re.fullmatch(form or ".*", value)]

    assert {entry.name for entry in CATALOGUE.values() if told(entry)} == sold


def test_every_instance_type_is_a_clouds():
    forms = [form for _, form, _ in CLOUDS.values() if form] + [r"gd-8x.*|g?b200-\dx"]
    types = [value for entry in CATALOGUE.values() for value in entry.labels.get(TYPE, ())]
    assert [value for value in types if sum(bool(re.fullmatch(form, value)) for form in forms) != 1] == []


# By one form alone: the driver's name, since no cloud sells it; or any node at all.
ONE_FORM = {"h200-nvl", "cpu"}


@pytest.mark.parametrize("name", NAMES)
def test_every_card_is_told_in_several_forms(name):
    entry = find(name)
    assert (len(entry.products) + sum(map(len, entry.labels.values())) > 1) == (name not in ONE_FORM)


def test_eks_tells_the_card_by_name_wherever_the_name_is_one_cards():
    named = {entry.name for entry in CATALOGUE.values() if KARPENTER in entry.labels}
    assert named == CLOUDS["EKS"][2] - {"a100-sxm-80gb", "a100-sxm-40gb"}
    assert all(e.labels.get(KARPENTER) == e.labels.get(EKS_AUTO) for e in CATALOGUE.values())


def test_every_label_has_a_source():
    keys = {key for entry in CATALOGUE.values() for key in entry.labels} | {PRODUCT_LABEL}
    assert keys == set(SOURCES)


@pytest.mark.parametrize("name", NAMES)
def test_a_share_of_a_card_is_not_the_card(name):
    told = [*find(name).products, *(value for values in find(name).labels.values() for value in values)]
    assert [value for value in told if value.endswith("-SHARED") or "-MIG-" in value] == []


def test_config_map_reads_back():
    assert from_data(to_data()) == CATALOGUE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("{}", id="no figures"),
        pytest.param(to_data()["l4"].replace("72", '"many"'), id="watts in words"),
    ],
)
def test_bad_entry_is_named(text):
    with pytest.raises(BadCatalogueError, match="'l4'"):
        from_data({"l4": text})


def test_unknown():
    with pytest.raises(UnknownAcceleratorError, match="'h999'; the catalogue has a100"):
        find("h999")
    with pytest.raises(UnknownDTypeError, match="a100-sxm-80gb has no figure for dtype float8_e4m3"):
        find("a100-sxm-80gb").peak("float8_e4m3")


def test_each_reason_belongs_to_a_condition_and_stands_once():
    keys = [(reason.condition, reason.status, reason.name) for reason in REASONS]
    assert len(keys) == len(set(keys))
    assert {reason.condition for reason in REASONS} == {condition.name for condition in CONDITIONS}


def test_is_known():
    assert is_known("Stalled", "True", "UnknownAccelerator")
    assert not is_known("Stalled", "True", "Tired")
