"""Generating completions: bounds by hand, and what more of everything does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.perfmodel.generation import (
    Engines,
    cache_bytes_per_token,
    generation,
    still_generating,
    weights_read,
)
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.catalogue import shipped
from equipoise.spec.workload import Rollout, workload

LLAMA, MIXTURE, LATENT = (workload(name) for name in ("llama31_8b", "qwen3_30b_a3b", "deepseekv3_671b"))
SHORT = Rollout(group_size=16, prompt_tokens=100, completion_tokens=1000, most_completion_tokens=1000)


def seconds(about=LLAMA, rollout=SHORT, *, chip="h100-sxm5-80gb", size=8, completions=512, share=0.9):
    nodes = machine(shipped().cluster(chip, num_accelerators=size))
    at = Engines(machine=nodes, num_accelerators=size, memory_share=share)
    found = generation(replace(about, rollout=rollout), at, Parameters(), num_completions=completions)
    return None if found is None else found.seconds


def test_a_token_of_the_cache_is_as_published():
    # Llama 3.1 8B: 8 heads of 128, keys and values, 2 bytes, 32 layers: 128 KiB a token.
    assert cache_bytes_per_token(LLAMA.transformer) * 32 == 128 * 1024
    # DeepSeek-V3: 512 and 64 values a layer (DeepSeek-AI 2024, section 4.2).
    assert cache_bytes_per_token(LATENT.transformer) == 2 * 576


def test_ranks_beyond_the_heads_of_keys_keep_copies():
    # 32 tensor ranks: Llama 3.1 8B's 8 heads lie there 4 times (8 ranks: once); latent attention's 576 values
    # on every rank (vLLM, `get_num_kv_heads`: max(1, heads / ranks)).
    one = cache_bytes_per_token(LLAMA.transformer)
    assert [cache_bytes_per_token(LLAMA.transformer, ranks) / one for ranks in (8, 16, 32)] == [1, 2, 4]
    assert cache_bytes_per_token(LATENT.transformer, 32) == 32 * 2 * 576
    # A rank has 72 GB of its 80, less 2 x 671 / 32 = 42 of weights: 30 GB. A token leaves 61 x 1,152 B there, a
    # sequence of 8,000 tokens 0.57 GB: the engine holds 52 at once, and 520 take ten times as long.
    long = replace(SHORT, completion_tokens=8000, most_completion_tokens=8000)
    held, more = (seconds(LATENT, rollout=long, size=32, completions=number) for number in (52, 520))
    assert more / held == pytest.approx(10, rel=0.05)


def test_few_sequences_read_few_experts():
    model = MIXTURE.transformer
    one, many = weights_read(model, np.array([1.0, 1e6]))
    tables = model.vocabulary * model.hidden
    assert one == pytest.approx(model.active_params - tables, rel=1e-6)
    assert many == pytest.approx(model.params - tables, rel=1e-6)


def test_one_sequence_is_bound_by_reading_the_weights():
    # 15.0 GB of weights (no table of inputs) a token at 0.86 of 3.35 TB/s: 5.2 ms.
    found = seconds(size=1, completions=1)
    assert found == pytest.approx(1000 * 5.2e-3, rel=0.05)


@given(mean=st.integers(1, 4000))
def test_lengths_have_the_stated_mean(mean):
    made = Rollout(group_size=2, prompt_tokens=1, completion_tokens=mean, most_completion_tokens=4000)
    at = (np.arange(40_000) + 0.5) / 10
    assert np.sum(still_generating(made, at)) / 10 == pytest.approx(mean, rel=0.02, abs=0.1)


def test_more_never_takes_longer_nor_less_work_more():
    assert seconds(size=16) <= seconds(size=8)
    assert seconds(completions=256) < seconds(completions=512)
    assert seconds(chip="h200") <= seconds()
    longer = replace(SHORT, most_completion_tokens=4000)
    assert seconds(rollout=longer) > seconds()


@pytest.mark.parametrize(
    ("chip", "memory_byte_per_s"), [("v100-sxm2-32gb", 900e9), ("quadro-rtx-8000-pcie-48gb", 672e9)]
)
def test_a_chip_without_bf16_generates_in_fp16(chip, memory_byte_per_s):
    # vLLM asks for dtype half there. 15.0 GB of weights a token: by four at best; each by itself for 16
    # sequences in four parts, hardly more than those and their keys.
    token_s = 15.0e9 / memory_byte_per_s
    assert 1000 * token_s / 4 < seconds(chip=chip, size=4, completions=16) < 1000 * token_s * 2


def test_a_model_that_no_engine_holds_is_not_generated_with():
    assert seconds(LATENT, size=8) is None
    assert seconds(LATENT, size=32) is not None
