"""Weights in 8 bits: how far a product may be off, and an engine that serves with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tandem_worker.engine import ModelLoadError, Sampling, load_model
from tandem_worker.engine.quantised import LEVELS, Int8Linear
from workers.tests.tiny import SETTINGS, generate, make_engine, write_tiny


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_off_by_the_rounding_of_its_weights(dtype, rows, biased):
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(64, 96, generator=generator) * 0.1
    weight[3] = 0
    bias = torch.randn(64, generator=generator).to(dtype) if biased else None
    x = torch.randn(rows, 96, generator=generator).to(dtype)
    found = Int8Linear(weight.to(torch.bfloat16), bias)(x)
    exact = torch.nn.functional.linear(
        x.float(), weight.to(torch.bfloat16).float(), None if bias is None else bias.float()
    )
    assert found.dtype == dtype
    # Half a level of each weight, and what bf16 rounds of inputs, scales and sum.
    levels = weight.abs().amax(dim=1) / LEVELS
    bound = x.float().abs().sum(1, keepdim=True) * levels / 2 + 0.02 * exact.abs() + 0.02
    assert bool(((found.float() - exact).abs() <= bound).all())


def test_an_engine_serves_with_int8_weights(tmp_path):
    directory = write_tiny(tmp_path)
    engine = make_engine(directory, dtype="bfloat16", weights="int8")
    try:
        prompts = [[5, 6, 7] * 9, [9, 8]]
        outputs = generate(engine, prompts, Sampling(max_tokens=12, ignore_eos=True))
        assert [len(one) for one in outputs] == [12, 12]
    finally:
        engine.stop()


def test_int8_with_fp32_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="int8 with bfloat16"):
        load_model(write_tiny(tmp_path), replace(SETTINGS, weights="int8"))
