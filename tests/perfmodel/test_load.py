"""Loads against published sizes and counts by hand, and laws that hold for any model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.perfmodel.load import BlockLoad, Load, mean_layer, stacked, transformer_load, workload_load
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import shipped_workloads, workload

KNOWN = [each for each in shipped_workloads().workloads.values() if each.transformer is not None]
LLAMA = workload("llama31_8b").transformer


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.slug)
def test_a_load_holds_every_weight_of_its_model(known):
    model = known.transformer
    load = transformer_load(model, sequence=2048)
    assert load.params == pytest.approx(model.params + model.prediction_params, rel=1e-9)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.slug)
def test_flop_are_the_model_s_but_for_tiles_and_chunks(known):
    model = known.transformer
    load = transformer_load(model, sequence=4096)
    ratio = load.train_flop_per_sample / (3 * 4096 * model.forward_flop_per_token(4096))
    # Heads are rounded up to tiles of 64, and state spaces multiply matrices within chunks.
    assert 1 - 1e-9 <= ratio < 1.25


def test_heads_of_whole_tiles_cost_what_they_count():
    load = transformer_load(LLAMA, sequence=4096)
    counted = 3 * 4096 * LLAMA.forward_flop_per_token(4096)
    assert load.train_flop_per_sample == pytest.approx(counted, rel=1e-9)


def test_operation_by_operation_does_keys_output_and_one_gate_again():
    load = transformer_load(LLAMA, sequence=8192)
    keys, output, gate = 4096 * 1024, 4096 * 4096, 4096 * 14336
    assert load.again_flop == pytest.approx(2 * (keys + output + gate), rel=1e-9)


def test_a_token_is_routed_in_the_width_experts_work_in():
    narrow = transformer_load(workload("nemotron_3_super").transformer, sequence=8192)
    share_of_layers = (40 + 2) / 88
    assert narrow.routed_bytes == pytest.approx(share_of_layers * 1024 * 2)
    assert narrow.top_k == 22


@settings(deadline=None)  # the first call reads the catalogue
@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 8))
def test_layers_that_predict_later_tokens_add_flop_and_weights(layers, experts, further):
    plain = {"layers": layers, "hidden": 64, "heads": 4, "vocabulary": 100, "kv_heads": 4, "head_size": 64}
    sizes = plain | {"ffn_hidden": 256, "experts": experts, "top_k": 1, "expert_ffn_hidden": 64}
    without = transformer_load(Transformer(**sizes), sequence=128)
    more = transformer_load(Transformer(**sizes, prediction_layers=further), sequence=128)
    shared = transformer_load(
        Transformer(**sizes, prediction_layers=further, prediction_shared=True), sequence=128
    )
    assert without.params <= shared.params <= more.params
    assert shared.train_flop_per_sample == pytest.approx(more.train_flop_per_sample)
    assert more.train_flop_per_sample >= without.train_flop_per_sample


@settings(deadline=None)  # the first call reads the catalogue
@given(st.floats(0, 100), st.floats(0, 100), st.floats(1, 1e6), st.floats(1, 1e6))
def test_a_mean_layer_is_the_blocks_shared_out(first, second, flop, params):
    mean = mean_layer(((first, BlockLoad(dense_flop=flop)), (second, BlockLoad(dense_params=params))), 4.0)
    assert mean.dense_flop == pytest.approx(first * flop / 4)
    assert mean.dense_params == pytest.approx(second * params / 4)
    assert mean.num_sums == pytest.approx((first + second) / 4)


def test_a_network_of_convolutions_has_no_tensor_axis():
    load = workload_load(workload("resnet"))
    # 25.6 M weights and 4.1 G multiplications of a picture (He et al. 2015, table 1, and torchvision).
    assert load.params == pytest.approx(25.56e6, rel=0.01)
    assert load.train_flop_per_sample == pytest.approx(3 * 2 * 4.09e9, rel=0.03)
    assert (load.hidden, load.heads, load.experts, load.sequence) == (0, 0, 0, 1)


def test_a_text_workload_s_load_is_its_transformer_s():
    known = workload("llama31_8b")
    expected = transformer_load(known.transformer, sequence=known.sequence_tokens)
    assert workload_load(known) == expected


def test_tables_without_their_lookups_are_refused_with_what_to_do():
    with pytest.raises(SpecError, match=r"embedding_lookups_per_sample.*--workloads"):
        workload_load(workload("dlrm"))


def test_a_recommender_looks_up_rows_and_sends_what_is_pooled():
    load = workload_load(workload("dlrm_dcnv2"))
    # 214 rows of 128 values a sample, in fp32; 26 pooled vectors of them, in 2 bytes.
    assert load.lookup_bytes == 214 * 128 * 4
    assert load.pooled_bytes == 26 * 128 * 2
    # 204,184,588 rows (mlcommons/training, --num_embeddings_per_feature, summed).
    assert load.table_params == pytest.approx(204_184_588 * 128, rel=1e-3)


def test_a_sequence_without_tokens_is_refused():
    with pytest.raises(SpecError, match=r"sequence=0; .* 1 token"):
        transformer_load(LLAMA, sequence=0)


def test_stacked_loads_keep_every_field():
    loads = [transformer_load(LLAMA, sequence=size) for size in (1024, 2048)]
    whole = stacked(loads)
    assert Load.__struct_fields__
    for name in Load.__struct_fields__:
        expected = [getattr(each, name) for each in loads]
        assert np.asarray(getattr(whole, name)).tolist() == expected
