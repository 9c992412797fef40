"""Parameters and FLOP of transformers: published counts, formulas of papers, and laws."""

import csv
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec.transformer import CompressedKeys, Transformer
from equipoise.spec.workload import shipped_workloads, workload

TRUTH = tomllib.loads((Path(__file__).parents[1] / "truth" / "model_sizes.toml").read_text())["model"]
PLAIN = Transformer(layers=2, hidden=64, heads=4, vocabulary=100, kv_heads=4, head_size=16, ffn_hidden=256)


@pytest.mark.truth
@pytest.mark.parametrize("stated", TRUTH, ids=lambda stated: stated["name"])
def test_parameters_and_flop_are_those_published(stated: dict[str, Any]) -> None:
    found, within = workload(stated["name"]), stated["relative_tolerance"]
    model = found.transformer
    assert found.params == pytest.approx(stated["params"], rel=max(within, 0.005))
    if "forward_mac" in stated:
        assert found.train_flop_per_sample == pytest.approx(6 * stated["forward_mac"], rel=within)
    if "trained_params" in stated:
        assert found.trained_params == stated["trained_params"]
    if model is None:
        return
    assert model.params == pytest.approx(stated["params"], rel=within)
    if "active_params" in stated:
        table = model.vocabulary * model.hidden if stated.get("no_input_table") else 0
        assert model.active_params - table == pytest.approx(stated["active_params"], rel=within)
    if "prediction_params" in stated:
        assert model.prediction_params == pytest.approx(stated["prediction_params"], rel=within)


def test_sizes_and_stated_parameters_of_the_catalogue_agree() -> None:
    assert shipped_workloads().workloads
    for found in shipped_workloads().workloads.values():
        if found.transformer is not None:
            # 1.2 %: pooling and segment tables of encoders, biases.
            assert found.transformer.params == pytest.approx(found.params, rel=0.012), found.slug


# The formula that the rates were stated with counts other work than is done: a Mamba width of twice the hidden size,
# where these two models have 64 heads of 64, so 4,096 for 2 x 2,688.
COUNTED_OTHERWISE = {"nemotron_3_nano": 1.075, "nemotron_35_lightning": 1.052}


@pytest.mark.truth
def test_flop_per_token_is_what_published_rates_were_computed_with(data_dir: Path) -> None:
    stated: dict[tuple[str, int], list[float]] = defaultdict(list)
    units: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    with (data_dir / "measured" / "megatron_bridge_nemo.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            measured, unit = float(row.pop("measured")), row.pop("unit")
            # Releases before 26.06 counted GPT-OSS by another formula; 8 GPUs trained adapters of the 70B.
            old = "OSS" in row["workload"] and "=26.06" not in row["parallel_config"]
            old &= "=26.08" not in row["parallel_config"]
            adapters = row["workload"].startswith("LLAMA3_70B") and row["n_gpus"] == "8"
            if not (old or adapters):
                units[tuple(row.values())].setdefault(unit, measured)
    for key, rates in units.items():
        if len(rates) == 2:
            stated[key[0], int(key[16])].append(rates["model TFLOP/s/GPU"] / rates["tokens/s/GPU"] * 10**12)
    assert len({name for name, _ in stated}) == 11
    for (name, sequence), flop in stated.items():
        found = workload(name)
        assert found.transformer is not None
        ours = 3 * found.transformer.forward_flop_per_token(sequence)
        expected = COUNTED_OTHERWISE.get(found.slug, 1.0)
        assert median(flop) / ours == pytest.approx(expected, abs=0.007), name


@pytest.mark.law
@given(
    layers=st.integers(1, 200),
    heads=st.integers(1, 160),
    head_size=st.integers(16, 256),
    vocabulary=st.integers(1, 10**6),
    sequence=st.integers(1, 10**6),
)
def test_a_plain_stack_follows_the_formula_of_its_paper(
    layers: int, heads: int, head_size: int, vocabulary: int, sequence: int
) -> None:
    """Narayanan et al. 2021, eq. 3: 24 l h^2 (1 + s / 6h + V / 12 l h) a token forward, all scores computed."""
    hidden = heads * head_size
    model = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        kv_heads=heads,
        head_size=head_size,
        ffn_hidden=4 * hidden,
        causal=False,
    )
    expected = 24 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden))
    assert model.forward_flop_per_token(sequence) == pytest.approx(expected, rel=1e-9)
    assert model.stack_params == 12 * layers * hidden**2


@pytest.mark.law
@given(st.integers(1, 4096), st.integers(1, 8192), st.integers(0, 2))
def test_a_window_only_takes_work_away(window: int, sequence: int, windowed_layers: int) -> None:
    model = replace(PLAIN, window=window, windowed_layers=windowed_layers)
    pairs = [min(position + 1, window) for position in range(sequence)]
    mean_windowed = sum(pairs) / sequence
    whole = (sequence + 1) / 2
    expected = (windowed_layers * mean_windowed + (2 - windowed_layers) * whole) / 2
    assert model.attention_context(sequence) == pytest.approx(expected)
    assert model.forward_flop_per_token(sequence) <= PLAIN.forward_flop_per_token(sequence) * (1 + 1e-12)


@pytest.mark.law
@given(st.integers(1, 64), st.data())
def test_only_chosen_experts_cost_flop_but_all_are_kept(experts: int, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, experts))
    model = replace(PLAIN, experts=experts, top_k=top_k, expert_ffn_hidden=128)
    idle = 2 * (experts - top_k) * 2 * 64 * 128
    assert model.params - model.active_params == idle
    same_work = replace(PLAIN, ffn_hidden=128 * top_k)
    router = 2 * 2 * 64 * experts
    assert model.forward_flop_per_token(32) == same_work.forward_flop_per_token(32) + router


def test_prediction_layers_cost_flop_and_weights_that_params_leaves_out() -> None:
    model = replace(PLAIN, prediction_layers=2)
    assert model.params == PLAIN.params
    layer = 12 * 64 * 64 + 2 * 64 * 64
    assert model.prediction_params == 2 * layer
    assert replace(model, prediction_shared=True).prediction_params == layer
    extra = model.forward_flop_per_token(9) - PLAIN.forward_flop_per_token(9)
    assert extra == 2 * (2 * (layer + 100 * 64) + 4 * 4 * 16 * 5)


def test_latent_attention_counts_its_four_projections_by_hand() -> None:
    model = replace(PLAIN, query_rank=8, kv_rank=6, rope_head_size=2, value_head_size=10)
    down, up = 64 * 8, 8 * 4 * (16 + 2)
    latent, out = 64 * (6 + 2) + 6 * 4 * (16 + 10), 4 * 10 * 64
    assert model.attention_params == down + up + latent + out
    assert model.score_flop_per_token(3) == 2 * 2 * 4 * (16 + 2 + 10) * 2.0


def test_compressed_keys_are_counted_position_by_position() -> None:
    keys = CompressedKeys(
        sparse_layers=1,
        sparse_ratio=4,
        top_k=2,
        index_heads=3,
        index_head_size=5,
        heavy_layers=1,
        heavy_ratio=16,
    )
    sequence = 4096
    sparse = sum(min(position / 4, 2) for position in range(sequence)) / sequence
    heavy = sum(position / 16 for position in range(sequence)) / sequence
    assert keys.keys(sequence) == pytest.approx(sparse + heavy, rel=1e-3)
    model = replace(PLAIN, query_rank=8, window=8, windowed_layers=2, compressed=keys)
    windowed = replace(model, compressed=None)
    assert model.attention_context(sequence) - windowed.attention_context(sequence) == pytest.approx(
        keys.keys(sequence) / 2
    )
    index = 64 * 4 * 5 + 3 * (8 * 5 + 64)
    assert model.stack_params - windowed.stack_params == 64 * 4 * 16 + index + 64 * 2 * 16
    index_flop = 2 * 3 * 5 * sequence / 4 / 2
    extra = model.score_flop_per_token(sequence) - windowed.score_flop_per_token(sequence)
    assert extra == pytest.approx(2 * 4 * 32 * keys.keys(sequence) + index_flop)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 0}, "layers=0;.* 1$"),
        ({"kv_heads": 3}, "heads=4 .*kv_heads=3"),
        ({"experts": 4}, "experts=4, top_k=0; expected both"),
        ({"experts": 4, "top_k": 5}, "experts=4, top_k=5"),
        ({"predicted_fraction": 1.5}, "predicted_fraction=1.5; expected from 0 to 1"),
        ({"window": 8, "windowed_layers": 3}, "windowed_layers=3; .* 2 layers"),
    ],
)
def test_sizes_that_no_model_has_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(PLAIN, **sizes)
