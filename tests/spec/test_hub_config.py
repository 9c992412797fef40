"""A model's config.json: parameters as `transformers` counts them, published counts, and files that are none."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.spec.hub_config import FAMILIES, read_config
from equipoise.spec.workload import workload

# Each as its class in transformers has it unless changed; the mixtures in few layers, which is enough to count them.
MODELS = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "cohere2": {},
    "phi": {},
    "phi3": {},
    "gpt_neox": {},
    "gpt2": {},
    "opt": {},
    "glm4": {},
    "olmo3": {},
    "starcoder2": {},
    "mixtral": {"num_hidden_layers": 2},
    "qwen2_moe": {"num_hidden_layers": 3, "decoder_sparse_step": 2},
    "qwen3_moe": {"num_hidden_layers": 3, "mlp_only_layers": [1]},
    "gpt_oss": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
    "glm4_moe": {"num_hidden_layers": 3, "head_dim": 128},
    "deepseek_v3": {"num_hidden_layers": 5},
    "llama4_text": {"num_hidden_layers": 4, "interleave_moe_layer_step": 2},
    "nemotron_h": {},
    "qwen3_next": {"num_hidden_layers": 4, "num_experts": 16},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {"num_hidden_layers": 4, "num_experts": 16},
    "bert": {},
    "distilbert": {},
    "t5": {"feed_forward_proj": "gated-gelu"},
    "vit": {},
}


def num_params(config) -> int:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    for name in ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel"):
        with suppress(ValueError), torch.device("meta"):
            return sum(each.numel() for each in getattr(transformers, name).from_config(config).parameters())
    raise AssertionError(config.model_type)


@pytest.mark.truth
@pytest.mark.parametrize("kind", MODELS)
def test_parameters_are_those_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[kind](**MODELS[kind])
    config.save_pretrained(tmp_path)
    found = read_config(tmp_path / "config.json").workload
    # Norms and biases are left out, of encoders also the table of segments and the layer before the logits.
    small = kind in {"bert", "distilbert", "vit"}
    assert found.params == pytest.approx(num_params(config), rel=0.011 if small else 0.001)


# config.json of published models, the keys that sizes follow from; the counts are those of the catalogue, whose sizes
# come from papers and model cards.
PUBLISHED = {
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "llama32_1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "deepseek_v2_236b": {
        "model_type": "deepseek_v2",
        "hidden_size": 5120,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "intermediate_size": 12_288,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536,
        "n_group": 8,
        "topk_group": 3,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 102_400,
    },
}


@pytest.mark.parametrize("slug", PUBLISHED)
def test_published_files_are_the_models_of_the_catalogue(slug, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[slug]))
    found, known = read_config(path).workload.transformer, workload(slug).transformer
    assert found.params == known.params
    assert found.active_params == known.active_params
    assert found.forward_flop_per_token(4096) == pytest.approx(known.forward_flop_per_token(4096), rel=1e-9)


def test_the_text_model_of_a_larger_one_is_taken_and_the_rest_named(tmp_path):
    path = tmp_path / "config.json"
    # As published for Gemma 3 27B, heads included; what it leaves out is as in transformers.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "num_hidden_layers": 62,
        "intermediate_size": 21_504,
    }
    text |= {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024}
    path.write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    )
    found = read_config(path)
    assert found.left_out == ("vision_config",)
    # Gemma Team 2025, table 1: 1,416 M of embedding and 25,600 M other parameters; five of six layers are local.
    assert found.workload.params == pytest.approx(27.016e9, rel=0.001)
    assert found.workload.transformer.windowed_layers == 52


REFUSED = {
    "not JSON": b"{",
    "no text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "no type": b"{}",
    "unknown": b'{"model_type": "warp"}',
    "not mapped": b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,'
    b' "vocab_size": 9, "layer_types": ["linear_attention"]}',
    "missing": b'{"model_type": "llama"}',
    "text for a number": b'{"model_type": "llama", "hidden_size": "64"}',
    "true for a number": b'{"model_type": "llama", "hidden_size": true}',
    "negative": b'{"model_type": "llama", "hidden_size": -64}',
    "huge": b'{"model_type": "llama", "hidden_size": 1e300}',
    "endless": b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
    "type is a list": b'{"model_type": ["llama"]}',
    "large": b" " * 2_000_000,
    "no image": b'{"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,'
    b' "image_size": 8}',
    "experts": b'{"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,'
    b' "vocab_size": 9, "num_local_experts": 2, "num_experts_per_tok": 4}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_file_is_refused_in_one_sentence(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(REFUSED[name])
    with pytest.raises(SpecError) as refused:
        read_config(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(SpecError, match=r"config\.json"):
            read_config(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "num_key_value_heads",
    "layer_types",
)
KEYS += (
    "tie_word_embeddings",
    "sliding_window",
    "num_experts",
    "num_experts_per_tok",
    "text_config",
    "mlp_only_layers",
)


@pytest.mark.law
@given(
    st.sampled_from([name for each in FAMILIES for name in each.types]),
    st.dictionaries(st.sampled_from(KEYS), json_values | st.integers(0, 100)),
)
def test_no_file_ends_in_any_other_error(tmp_path_factory, kind, keys):
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(json.dumps({**keys, "model_type": kind}))
    with suppress(SpecError):
        read_config(path)
