"""Models of other sizes against the published members of families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec.scaled_transformer import scaled_to
from equipoise.spec.workload import workload


@pytest.mark.truth
def test_llama_3_70b_made_small_is_about_llama_3_8b():
    # Llama team 2024, table 3: 32 layers, 4,096 wide, 32 heads, feed-forward 14,336; 8 keys where ours keeps the share.
    found = scaled_to(workload("llama3_70b").transformer, 8.03e9)
    assert (found.hidden, found.heads, found.ffn_hidden) == (4096, 32, 14_336)
    assert found.layers == pytest.approx(32, abs=2)


@pytest.mark.truth
def test_gpt_2_made_larger_is_about_gpt_2_xl():
    # Radford et al. 2019: 48 layers, 1,600 wide; smaller ones of the family are wider for their depth.
    found = scaled_to(workload("gpt2_large").transformer, 1.56e9)
    assert found.hidden == pytest.approx(1600, rel=0.1)
    assert found.layers == pytest.approx(48, rel=0.15)


@pytest.mark.law
@pytest.mark.parametrize("name", ["llama2_7b", "llama3_70b", "mixtral_8x7b", "gpt2", "bert", "qwen3_30b_a3b"])
@given(factor=st.floats(2.0, 100.0))
def test_parameters_come_out_as_asked(name, factor):
    shape = workload(name).transformer
    found = scaled_to(shape, factor * shape.params)
    assert found.params / shape.params == pytest.approx(factor, rel=0.06)
    assert found.heads % found.kv_heads == 0
    assert found.experts == shape.experts
    assert found.vocabulary == shape.vocabulary


@pytest.mark.law
@pytest.mark.parametrize(
    "name", ["qwen25_7b", "llama3_70b", "llama32_3b", "falcon_180b", "qwen3_30b_a3b", "qwen3_235b_a22b"]
)
@given(factor=st.floats(0.25, 16.0))
def test_proportions_stay_close_to_those_of_the_family(name, factor):
    # Heads that share keys by 7, 8 or 29 are no reason for a width in steps of as many heads.
    shape = workload(name).transformer
    found = scaled_to(shape, factor * shape.params)
    ratio = (found.hidden / found.layers) / (shape.hidden / shape.layers)
    assert 0.4 < ratio < 1.6
    assert found.hidden / found.heads == pytest.approx(shape.hidden / shape.heads, rel=0.01)
    share = (found.heads / found.kv_heads) / (shape.heads / shape.kv_heads)
    assert 1 / 1.45 <= share <= 1.45 or found.kv_heads == 1


@pytest.mark.law
@pytest.mark.parametrize("name", ["llama31_8b", "llama3_70b", "qwen3_30b_a3b", "mixtral_8x7b"])
@given(factor=st.floats(0.25, 64.0))
def test_keys_of_large_models_are_shared_by_tensor_parallel_ranks(name, factor):
    # Published models that share keys have 2, 4, 8 or 16 of them; Megatron-LM refuses 19 on two ranks or four.
    shape = workload(name).transformer
    keys = scaled_to(shape, factor * shape.params).kv_heads
    assert keys % (4 if keys >= 16 else 2 if keys >= 8 else 1) == 0


@pytest.mark.law
@pytest.mark.parametrize("name", ["glm45_355b", "deepseek_v3", "qwen3_30b_a3b", "mixtral_8x7b"])
@given(factor=st.floats(0.02, 16.0))
def test_widths_are_multiples_of_the_tiles_of_matrix_units(name, factor):
    # NVIDIA, Matrix Multiplication Background: dimensions that are multiples of 64 values (128 bytes) or more.
    shape = workload(name).transformer
    found = scaled_to(shape, factor * shape.params)
    widths = [found.hidden, found.ffn_hidden, found.expert_ffn_hidden, found.query_rank, found.kv_rank]
    assert found.hidden > 0
    assert [each % 64 for each in widths] == [0] * len(widths)


@pytest.mark.parametrize("name", ["llama2_7b", "llama31_405b", "gpt3", "mixtral_8x22b", "gpt_oss_20b"])
def test_a_model_of_its_own_size_is_itself(name):
    shape = workload(name).transformer
    assert scaled_to(shape, shape.params) == shape


def test_a_model_too_small_for_a_layer_still_is_one():
    found = scaled_to(workload("llama3_70b").transformer, 1e6)
    assert found.layers == 1


def test_a_hybrid_is_refused():
    with pytest.raises(SpecError, match="hybrid"):
        scaled_to(workload("nemotron_3_nano").transformer, 1e9)
