"""Splitwise's comparison with its rules replaced by ours, one at a time: what each rule is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tandem_operator.api.catalogue import find
from tandem_operator.plan.facts import Device, ModelShape
from tandem_operator.plan.roofline import kv_bytes_per_token, prior_of
from tandem_operator.simulate.published.costs import context_counted, data_sheet, measured, of_table
from tandem_operator.simulate.published.fleets import A100, CAPPED, H100, Rules
from tandem_operator.simulate.published.splitwise import BLOOM, DEVICES, LLAMA, Link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.simulate.published.costs import Table
    from tandem_operator.simulate.published.splitwise import Shape

# bigscience/bloom and meta-llama/Llama-2-70b-hf, config.json; parameters from their model cards.
MODELS: Final[Mapping[str, ModelShape]] = {
    BLOOM.name: ModelShape(176_247_271_424, 70, 14336, 112, 112, 128, 250_880, 2),
    LLAMA.name: ModelShape(68_976_648_192, 80, 8192, 64, 8, 128, 32_000, 2),
}
ENTRIES: Final = {A100: "a100-sxm-80gb", H100: "h100-sxm"}  # the catalogue's names; a capped card has none


def splitwise(table: Table, shape: Shape) -> Rules:
    """As published: tokens alone cost, no GQA, a link for each transfer."""
    costs = {name: measured(of_table(table, shape.name, name)) for name in (A100, H100, CAPPED)}
    return Rules("Splitwise's", shape, costs)


def with_context(table: Table, shape: Shape) -> Rules:
    """The same table, but a decode step reads the contexts of its batch."""
    costs = {name: context_counted(of_table(table, shape.name, name)) for name in (A100, H100, CAPPED)}
    return Rules("context counted", shape, costs)


def with_gqa(rules: Rules) -> Rules:
    """KV cache by KV heads: room for more, and less to transfer. No change for a model without GQA."""
    model = MODELS[rules.shape.name]
    counted = kv_bytes_per_token(model) / replace(rules.shape, kv_share=1.0).kv_bytes
    return replace(rules, name=f"{rules.name}, GQA", shape=replace(rules.shape, kv_share=counted))


def with_contention(rules: Rules) -> Rules:
    """The network ports of an A100 machine at the share of line rate that we expect, one transfer at a time each."""
    prior = prior_of(device(A100), DEVICES, MODELS[rules.shape.name])
    bandwidth = kv_bytes_per_token(MODELS[rules.shape.name]) / prior.transfer_token_s
    return replace(rules, name=f"{rules.name}, shared links", link=Link(bandwidth, is_shared=True))


def from_data_sheets(rules: Rules) -> Rules:
    """Our uncalibrated costs in place of the table's; the rest of the rules as they are."""
    model = MODELS[rules.shape.name]
    costs = {name: data_sheet(device(name), DEVICES, model) for name in ENTRIES}
    return replace(rules, name="ours, from data sheets", costs=costs)


def changes(table: Table, shape: Shape) -> list[Rules]:
    """From Splitwise's rules to ours, each with one more of ours."""
    context = with_context(table, shape)
    gqa = with_gqa(context)
    contention = with_contention(gqa)
    return [splitwise(table, shape), context, gqa, contention, from_data_sheets(contention)]


def device(hardware: str) -> Device:
    """The catalogue's entry for one of Splitwise's, at the precision of its measurements (16 bits)."""
    entry = find(ENTRIES[hardware])
    flops = entry.peak("float16")
    return Device(entry.name, flops, entry.memory_bytes, entry.bandwidth, entry.link, entry.price_per_hour)
