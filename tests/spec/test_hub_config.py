"""A model's config.json: parameters as `transformers` counts them, published counts, and files that are none."""

import json
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import SpecError
from equipoise.perfmodel.load import workload_load
from equipoise.spec.hub_config import read_config
from equipoise.spec.hub_keys import MODEL_TYPES_FILE
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
    "falcon": {},
    "gpt_neo": {},
    "gpt_bigcode": {},
    "bloom": {},
    "exaone4": {},
    "ernie4_5_moe": {"num_hidden_layers": 3},
    "granitemoehybrid": {},
    "jamba": {"num_hidden_layers": 8},
    "mamba2": {},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "falcon_h1": {},
    "minimax": {"num_hidden_layers": 4},
    "olmo_hybrid": {},
    "minicpm3": {},
    "bert": {},
    "distilbert": {},
    "electra": {},
    "deberta-v2": {},
    "modernbert": {},
    "mamba": {},
    "t5": {"feed_forward_proj": "gated-gelu"},
    "bart": {},
    "whisper": {},
    "wav2vec2": {},
    "clip": {},
    "siglip": {},
    "vit": {},
    "dinov2": {},
    "swin": {},
    "convnext": {},
    "albert": {},
    "xlnet": {},
    "longformer": {},
    "big_bird": {},
    "switch_transformers": {},
    "nllb-moe": {},
    "rwkv": {},
    "recurrent_gemma": {},
    "lfm2": {},
    "xlstm": {},
    "gemma3n_text": {},
    "gemma4_text": {},
    "zamba": {},
    "zamba2": {"num_mem_blocks": 2},
    "kimi_linear": {},
    "deepseek_v4": {"num_hidden_layers": 6},
    "afmoe": {"num_hidden_layers": 4},
    "apertus1p5_text": {},
    "bailing_hybrid": {"num_hidden_layers": 6},
    "cohere2_moe": {"num_hidden_layers": 4},
    "hy_v3": {"num_hidden_layers": 3},
    "hy_v4": {},
    "laguna": {"num_hidden_layers": 4},
    "lara_mini": {},
    "lfm3": {},
    "mimo_v2_flash": {"num_hidden_layers": 7},
    "modernbert-decoder": {},
    "led": {},
    "vit_mae": {},
    "wav2vec2-bert": {"add_adapter": True},
    "wav2vec2-conformer": {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16},
    "sam": {},
    "timesfm": {},
    "timesfm2_5": {},
}
# Norms and biases are left out, of encoders also the table of segments and the layer before the logits; of pairs what
# projects either.
ROUGHLY = (
    "bert",
    "distilbert",
    "electra",
    "deberta-v2",
    "modernbert",
    "mamba",
    "whisper",
    "wav2vec2",
    "clip",
    "siglip",
)
ROUGHLY += (
    "vit",
    "dinov2",
    "swin",
    "convnext",
    "albert",
    "longformer",
    "big_bird",
    "gemma3n_text",
    "xlnet",
    "xlstm",
)
ROUGHLY += (
    "kimi_linear",
    "modernbert-decoder",
    "led",
    "vit_mae",
    "wav2vec2-bert",
    "wav2vec2-conformer",
    "sam",
)
ROUGHLY += ("timesfm",)
BUILDERS = (
    "SpeechSeq2Seq",
    "Seq2SeqLM",
    "CausalLM",
    "MaskedLM",
    "CTC",
    "PreTraining",
    "TimeSeriesPrediction",
)


def num_params(config) -> int:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    for kind in (*BUILDERS, ""):
        with suppress(ValueError), torch.device("meta"):
            builder = getattr(transformers, f"AutoModelFor{kind}" if kind else "AutoModel")
            return sum(each.numel() for each in builder.from_config(config).parameters())
    raise AssertionError(config.model_type)


@pytest.mark.truth
@pytest.mark.parametrize("kind", MODELS)
def test_parameters_are_those_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not have {kind}")
    config = transformers.CONFIG_MAPPING[kind](**MODELS[kind])
    config.save_pretrained(tmp_path)
    found = read_config(tmp_path / "config.json").workload
    assert found.params == pytest.approx(num_params(config), rel=0.011 if kind in ROUGHLY else 0.001)


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
def test_published_files_are_the_models_of_the_catalogue(slug, mine):
    path = mine(json.dumps(PUBLISHED[slug]), "config.json")
    found, known = read_config(path).workload.transformer, workload(slug).transformer
    assert found.params == known.params
    assert found.active_params == known.active_params
    assert found.forward_flop_per_token(4096) == pytest.approx(known.forward_flop_per_token(4096), rel=1e-9)


TRUTH = Path(__file__).parents[1] / "truth"
CARDS, DIFFUSION = (
    tomllib.loads((TRUTH / f"{name}_configs.toml").read_text()) for name in ("hub", "diffusion")
)


def written(path, keys):
    (path / "config.json").write_text(json.dumps(keys))
    return path / "config.json"


@pytest.fixture
def published(tmp_path):
    """A function that reads the published config.json of a model."""
    return lambda name: read_config(written(tmp_path, (CARDS | DIFFUSION)[name]["config"]))


@pytest.mark.truth
@pytest.mark.parametrize("name", CARDS)
def test_parameters_are_those_of_the_models_card(name, tmp_path):
    card = CARDS[name]
    found = read_config(written(tmp_path, card["config"]))
    assert found.workload.params == pytest.approx(card["params"], rel=0.02)
    assert found.assumed is None
    if "active" in card:
        assert found.workload.transformer.active_params == pytest.approx(card["active"], rel=0.02)


# FLOP and bytes of the catalogue's models were counted on torch modules (their sources), layer by layer.
COUNTED = (
    "whisper_large_v3",
    "clip_vit_b32",
    "clip_vit_b16",
    "clip_vit_l14",
    "wav2vec2_base",
    "convnext_base",
)


@pytest.mark.truth
@pytest.mark.parametrize("name", COUNTED)
def test_models_of_several_stacks_cost_what_counted_ones_do(name, published):
    known, found = workload(name), published(name).workload
    assert found.train_flop_per_sample == pytest.approx(known.train_flop_per_sample, rel=0.04)
    load = workload_load(found)
    assert load.params == pytest.approx(found.params)
    assert load.train_flop_per_sample == pytest.approx(found.train_flop_per_sample)
    kept = load.sequence * load.layers * (load.kept_whole_bytes + load.kept_shared_bytes)
    assert kept == pytest.approx(known.activation_bytes_per_sample, rel=0.2)


def test_swin_costs_what_its_paper_states(published):
    # Liu et al. 2021, table 1: Swin-B at 224 pixels, 15.4 G multiplications and additions an image
    found = published("swin_base").workload
    assert found.train_flop_per_sample == pytest.approx(3 * 2 * 15.4e9, rel=0.02)


def test_images_of_a_vision_transformer_grow(published):
    """ViT-L/16 (Dosovitskiy et al. 2021): 14^2 patches and a class token at 224 pixels, 24^2 and one at 384."""
    found = published("vit_large").workload
    larger = found.on_images(found.image.of_side(384))
    assert (found.image.tokens, found.sequence_tokens, larger.sequence_tokens) == (197, 197, 577)
    assert larger.transformer.params == pytest.approx(found.transformer.params, rel=0.01)
    assert published("vit_mae_base").workload.image is None


def test_a_masked_autoencoder_passes_a_quarter_of_the_patches(tmp_path):
    # By hand: 12 layers of 12 x 768^2 weights on 49 patches and the class token, 8 of 12 x 512^2 on 197, scores and sums
    # of 2 x 2 x tokens^2 x width a layer, and the matrices before, between and behind.
    config = CARDS["vit_mae_base"]["config"]
    layers = 2 * (12 * 12 * 768**2 * 50 + 8 * 12 * 512**2 * 197)
    layers += 4 * (12 * 50**2 * 768 + 8 * 197**2 * 512) + 2 * (50 * 768 * 512 + 197 * 512 * 768)
    found = read_config(written(tmp_path, config)).workload
    assert found.sequence_tokens == 50
    assert found.train_flop_per_sample == pytest.approx(3 * layers, rel=0.02)


def test_a_segmenter_attends_in_windows_but_for_four_layers(published):
    # By hand: 32 layers of 12 x 1280^2 weights on 4,096 patches; 28 see 196 of them and four all; neck of 1280 x 256 and
    # 9 x 256^2. EfficientViT-SAM (Zhang et al. 2024, recalled) counts 2,973e9, windows padded to 4,900 patches included.
    found = published("sam_vit_huge")
    products = 32 * 12 * 1280**2 + 1280 * 256 + 9 * 256**2 + 2 * 1280 * (28 * 196 + 4 * 4096)
    assert found.workload.train_flop_per_sample == pytest.approx(3 * 2 * 4096 * products, rel=0.01)
    assert found.workload.train_flop_per_sample == pytest.approx(3 * 2 * 2973e9, rel=0.06)
    assert found.left_out == ()


def test_a_series_is_as_many_tokens_as_patches(published):
    # google/timesfm-2.0-500m-pytorch (recalled): 2,048 numbers in patches of 32; 50 layers of 6 x 1280^2 weights.
    found = published("timesfm_2_500m").workload
    assert (found.sequence_tokens, found.area) == (64, "forecasting")
    assert found.train_flop_per_sample == pytest.approx(3 * 64 * 2 * (50 * 6 * 1280**2 + 6.9e6), rel=0.02)


def test_batches_are_those_of_the_papers(published):
    batches = {"vit_large": 4096, "clip_vit_l14": 32_768, "whisper_tiny": 256, "roberta_large": 8192}
    for name, batch in batches.items():
        found = published(name).workload
        assert found.usual_batch_samples == batch
        assert found.usual_batch_source


# Of Yi 6B (01-ai/Yi-6B, card: 6 B, 6,061,035,520 parameters), under a name that nobody has.
UNKNOWN = {
    "model_type": "novel",
    "architectures": ["NovelForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 64_000,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}


def test_a_type_that_is_not_known_is_read_as_a_decoder_like_llama_and_said_to_be(tmp_path):
    found = read_config(written(tmp_path, UNKNOWN))
    assert found.workload.params == pytest.approx(6_061_035_520, rel=0.001)
    assert "novel" in found.assumed
    assert "6.06 B" in found.assumed
    assert "model card" in found.assumed
    inner = read_config(
        written(tmp_path, {"model_type": "novel_vl", "text_config": UNKNOWN, "vision_config": {"a": 1}})
    )
    assert (inner.workload.params, inner.left_out) == (found.workload.params, ("vision_config",))


def test_an_unknown_type_whose_activation_is_never_gated_has_two_matrices_a_block(tmp_path):
    # xIELU: Huang and Schlag 2024, in Apertus. A third of 3 x 4096 x 11,008 weights less in each of 32 layers.
    found = read_config(written(tmp_path, UNKNOWN | {"hidden_act": "xielu"}))
    assert found.workload.params == pytest.approx(6_061_035_520 - 32 * 4096 * 11_008, rel=0.001)


def test_uses_of_a_shared_block_are_listed_or_follow_from_their_period(tmp_path):
    # Zyphra/Zamba-7B-v1 (recalled): 76 layers, 13 uses of one block; counted on transformers 5.24.
    keys = {"model_type": "zamba", "hidden_size": 3712, "intermediate_size": 14_848, "vocab_size": 32_000}
    keys |= {"num_hidden_layers": 76, "num_attention_heads": 16, "attention_head_dim": 464}
    keys |= {"attn_layer_period": 6, "mamba_d_state": 16, "mamba_expand": 2, "mamba_dt_rank": 232}
    assert read_config(written(tmp_path, keys)).workload.params == pytest.approx(7_232_490_496, rel=0.001)


def test_layers_may_have_heads_of_their_own_in_windows(tmp_path):
    # 36 of 48 layers of 64 heads in windows in place of 48: 2 x 2048 x 16 x 128 more weights each.
    shape = {"model_type": "laguna", "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 128}
    shape |= {"num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 100_352}
    shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "sliding_window": 512}
    shape |= {"num_hidden_layers": 48, "mlp_layer_types": ["dense"] + ["sparse"] * 47}
    shape |= {"layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12}
    plain = read_config(written(tmp_path, shape)).workload
    own = read_config(
        written(tmp_path, shape | {"num_attention_heads_per_layer": [48, 64, 64, 64] * 12})
    ).workload
    assert own.params - plain.params == 36 * 2 * 2048 * 16 * 128
    with pytest.raises(SpecError, match="layer_types"):
        read_config(written(tmp_path, shape | {"num_attention_heads_per_layer": [48]}))


@pytest.mark.parametrize("slug", PUBLISHED)
def test_experts_and_latent_attention_of_an_unknown_type_are_read(slug, tmp_path):
    keys = PUBLISHED[slug] | {"model_type": "novel", "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001}
    found, known = read_config(written(tmp_path, keys)), workload(slug).transformer
    assert found.workload.params == known.params
    assert found.workload.transformer.active_params == known.active_params
    assert ("experts" in found.assumed) == bool(known.experts)
    assert ("latent" in found.assumed) == bool(known.kv_rank)


# Types of transformers that the table does not name.
UNNAMED = {
    "bitnet": {},
    "diffllama": {},
    "youtu": {},
    "granite_swa": {},
    "sarvam_moe": {"num_hidden_layers": 4},
}


@pytest.mark.truth
@pytest.mark.parametrize("kind", UNNAMED)
def test_a_type_that_the_table_does_not_name_is_near_what_transformers_builds(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    config = transformers.CONFIG_MAPPING[kind](**UNNAMED[kind])
    config.save_pretrained(tmp_path)
    found = read_config(tmp_path / "config.json")
    assert found.assumed
    assert found.workload.params == pytest.approx(num_params(config), rel=0.015)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"n_routed_experts": 8}, "num_experts_per_tok"),
        ({"num_codebooks": 8}, "num_codebooks"),
        ({"ssm_state_size": 16}, "ssm_state_size"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"conv_kernel": 4}, "conv_kernel"),
        ({"layer_types": ["linear_attention"]}, "linear_attention"),
        ({"architectures": ["NovelForMaskedLM"]}, "NovelForMaskedLM"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"rms_norm_eps": None, "hidden_act": "gelu"}, "rms_norm_eps"),
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"attn_type_list": [0, 1]}, "attn_type_list"),
    ],
)
def test_a_type_that_is_not_known_is_refused_where_its_file_is_unlike_llamas(keys, word, tmp_path):
    with pytest.raises(SpecError, match=word):
        read_config(written(tmp_path, UNKNOWN | keys))


@pytest.mark.parametrize(
    ("kind", "word"), [("detr", "networks"), ("resnet", "convolutions"), ("reformer", "attention")]
)
def test_what_sizes_cannot_state_is_refused_by_name(kind, word, tmp_path):
    with pytest.raises(SpecError, match=rf"{kind}.*{word}.*MODULE:FUNCTION"):
        read_config(written(tmp_path, {"model_type": kind, "hidden_size": 64}))


@pytest.mark.truth
@pytest.mark.parametrize("name", DIFFUSION)
def test_parameters_and_flop_of_diffusion_models_are_those_of_diffusers(name, tmp_path):
    known = DIFFUSION[name]
    found = read_config(written(tmp_path, known["config"])).workload
    assert found.params == pytest.approx(known["params"], rel=0.02)
    assert found.area == "generation"
    assert found.frozen_params > 0
    if "tokens" in known:
        assert found.sequence_tokens == known["tokens"]
    if "flop" in known:
        passes = found.train_flop_per_sample / (3 + found.frozen_share)
        assert passes == pytest.approx(known["flop"], rel=0.02)


# Counted on diffusers and transformers modules (their sources).
@pytest.mark.truth
@pytest.mark.parametrize("name", ["flux1_dev", "sdxl", "wan21_1_3b"])
def test_a_diffusion_model_costs_what_the_catalogues_does(name, published):
    known, found = workload(name), published(name).workload
    assert found.train_flop_per_sample == pytest.approx(known.train_flop_per_sample, rel=0.05)
    assert found.frozen_params == pytest.approx(known.frozen_params, rel=0.01)
    assert found.frozen_share == pytest.approx(known.frozen_share, rel=0.06)
    load, other = workload_load(found), workload_load(known)
    kept, kept_by_known = (
        each.sequence * each.layers * (each.kept_whole_bytes + each.kept_shared_bytes)
        for each in (load, other)
    )
    assert kept == pytest.approx(kept_by_known, rel=0.2)


# Pixels along the side of a latent: Podell et al. 2023 (8), Esser et al. 2024 (8), Chen et al. 2024 (8), Xie et
# al. 2024 (32), Wan 2025 (8); FLUX.1 packs two by two of 8 into one.
@pytest.mark.parametrize(
    ("name", "latent_pixels"),
    [
        ("flux1_dev", 16),
        ("sd3_medium", 8),
        ("pixart_sigma", 8),
        ("sana_1600m", 32),
        ("sdxl", 8),
        ("wan21_1_3b", 8),
    ],
)
def test_images_of_a_diffusion_model_are_those_of_its_file_or_of_the_question(name, latent_pixels, tmp_path):
    keys = DIFFUSION[name]["config"]
    usual = read_config(written(tmp_path, keys)).workload
    half = usual.image.of_side(min(usual.image.width, usual.image.height) // 2)
    latents = {"sample_width": half.width // latent_pixels, "sample_height": half.height // latent_pixels}
    stated, asked = read_config(written(tmp_path, keys | latents)).workload, usual.on_images(half)
    assert (stated.image.pixels, stated.sequence_tokens) == (half.pixels, asked.sequence_tokens)
    # Texts, whose keys do not grow, are up to 2 % of a U-Net on 512 pixels.
    assert asked.train_flop_per_sample == pytest.approx(stated.train_flop_per_sample, rel=0.03)
    assert asked.frozen_share == pytest.approx(stated.frozen_share, rel=0.03)
    if stated.transformer is None:
        kept = stated.activation_bytes_per_sample
        assert asked.activation_bytes_per_sample == pytest.approx(kept, rel=0.03)


# Counted on diffusers 0.42 (sources of the catalogue). SDXL's figure counts attention too: twice in 70 layers.
@pytest.mark.truth
@pytest.mark.parametrize(
    ("name", "slug", "attends"), [("sdxl", "sdxl", 140), ("sd15", "stable_diffusion", 0)]
)
def test_a_u_net_launches_as_many_products_as_were_counted(name, slug, attends, published):
    found = published(name).workload
    assert found.layers == pytest.approx(workload(slug).layers - attends, rel=0.01)


@pytest.mark.truth
def test_scores_and_texts_of_a_u_net_are_the_share_that_was_counted(published):
    # Counted on diffusers 0.42 (source of the catalogue's SDXL).
    found, known = published("sdxl").workload, workload("sdxl")
    assert found.image.squared_share == pytest.approx(known.image.squared_share, rel=0.05)
    # Tables of words, which look up, count as products in the file.
    assert found.image.text_share == pytest.approx(known.image.text_share, rel=0.2)


def test_a_pipeline_is_the_network_that_its_folder_holds(tmp_path):
    keys = DIFFUSION["sd3_medium"]["config"]
    index = {"_class_name": "StableDiffusion3Pipeline", "transformer": ["diffusers", keys["_class_name"]]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(SpecError, match=r"transformer/config\.json"):
        read_config(tmp_path / "model_index.json")
    (tmp_path / "transformer").mkdir()
    written(tmp_path / "transformer", keys)
    assert read_config(tmp_path / "model_index.json").workload.params == pytest.approx(2.028e9, rel=0.02)


def test_the_second_network_of_a_pipeline_is_said_to_be_left_out(tmp_path):
    keys = DIFFUSION["wan21_i2v_14b"]["config"]
    networks = {name: ["diffusers", keys["_class_name"]] for name in ("transformer", "transformer_2")}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline", **networks}))
    (tmp_path / "transformer").mkdir()
    written(tmp_path / "transformer", keys)
    assert "transformer_2" in read_config(tmp_path / "model_index.json").left_out


def test_a_network_of_diffusers_that_is_not_read_is_refused_with_what_can_be_asked(tmp_path):
    with pytest.raises(SpecError, match=r"AutoencoderKL.*MODULE:FUNCTION"):
        read_config(written(tmp_path, {"_class_name": "AutoencoderKL", "num_layers": 24}))
    with pytest.raises(SpecError, match=r"Transformer2DModel.*MODULE:FUNCTION"):
        read_config(
            written(
                tmp_path, {"_class_name": "Transformer2DModel", "norm_type": "layer_norm", "num_layers": 24}
            )
        )


def test_layers_that_share_weights_are_computed_each_and_stored_once(tmp_path):
    shape = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    shape |= {"vocab_size": 30_000, "max_position_embeddings": 512}
    shared, own = (
        read_config(written(tmp_path, shape | {"model_type": kind})).workload for kind in ("albert", "bert")
    )
    assert shared.transformer.forward_flop_per_token(512) == pytest.approx(
        own.transformer.forward_flop_per_token(512)
    )
    # 12 blocks of 4 x 768 x 768 + 2 x 768 x 3072 weights in BERT; one here
    block = 7_077_888
    assert (own.transformer.stack_params, shared.transformer.stack_params) == (12 * block, block)
    loads = [workload_load(each) for each in (shared, own)]
    assert loads[0].train_flop_per_sample == pytest.approx(loads[1].train_flop_per_sample)
    assert loads[0].params == pytest.approx(shared.params)


def nas_block(group, factor, **others):
    attention = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
    return {
        "attention": attention,
        "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False},
    } | others


NAS = {"model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "vocab_size": 128_256}


def test_a_searched_network_of_equal_blocks_is_the_model_it_was_cut_from(tmp_path):
    # Llama 3.1 70B (Llama team 2024, table 3), from which Nemotron Super and Ultra were cut: 28,672 wide, 8 keys
    keys = NAS | {"num_hidden_layers": 80, "block_configs": [nas_block(8, 5.25)] * 80}
    found, known = read_config(written(tmp_path, keys)).workload, workload("llama31_70b")
    assert found.params == known.transformer.params
    assert found.transformer.forward_flop_per_token(4096) == known.transformer.forward_flop_per_token(4096)


def test_blocks_that_a_search_skipped_or_replaced_cost_nothing_or_one_matrix(tmp_path):
    linear = nas_block(None, None, ffn={"no_op": False, "replace_with_linear": True})
    blocks = [nas_block(8, 5.25), nas_block(None, 5.25), nas_block(8, None), linear]
    found = read_config(written(tmp_path, NAS | {"num_hidden_layers": 4, "block_configs": blocks})).workload
    hidden = 8192
    attention, dense = 2 * hidden * hidden + 2 * hidden * 1024, 3 * hidden * 28_672
    by_hand = 2 * attention + 2 * dense + hidden * hidden + 2 * 128_256 * hidden
    assert found.params == pytest.approx(by_hand, rel=1e-4)
    load = workload_load(found)
    assert load.params == pytest.approx(found.params)
    assert load.layers == 4


def test_layers_of_several_widths_take_a_longer_sample_all_alike(published):
    # OpenELM-270M: every token passes every weight but the table of tokens, which makes logits as well
    found = published("openelm_270m").workload.transformer
    for tokens in (512, 2048):
        heads = sum([12] * 5 + [16] * 7 + [20] * 4)
        scores = 2 * 2 * 64 * heads * (tokens + 1) / 2
        assert found.forward_flop_per_token(tokens) == pytest.approx(2 * found.params + scores, rel=1e-3)


@pytest.mark.law
@pytest.mark.parametrize("name", CARDS)
def test_a_longer_sample_never_takes_less(name, published):
    model = published(name).workload.transformer
    flop = [tokens * model.forward_flop_per_token(tokens) for tokens in (512, 2**12, 2**16, 2**20)]
    assert 0 < flop[0] < flop[1] < flop[2] < flop[3]


def test_values_of_minicpm3_are_as_wide_as_its_hidden_size_by_heads(tmp_path):
    # openbmb/MiniCPM3-4B states no v_head_dim, and its class takes 2,560 / 40 (transformers, MiniCPM3Config)
    keys = {"model_type": "minicpm3", "hidden_size": 2560, "intermediate_size": 6400, "vocab_size": 73_448}
    keys |= {"num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40}
    keys |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "q_lora_rank": 768, "kv_lora_rank": 256}
    models = [read_config(written(tmp_path, keys | more)).workload for more in ({}, {"v_head_dim": 64})]
    assert models[0].transformer == models[1].transformer
    assert models[0].params == pytest.approx(4.07e9, rel=0.01)


def test_recurrent_gemma_attends_in_windows_in_a_third_of_its_layers(published):
    # Botev et al. 2024: 26 layers, of which every third attends, with 10 heads of 256 to 2,048 tokens.
    model = published("recurrentgemma_2b").workload.transformer
    more = model.forward_flop_per_token(2**20) - model.forward_flop_per_token(2**11)
    keys = 2048 * (1 - 2047 / 2**21) - 2049 / 2
    assert more == pytest.approx(8 * 4 * 10 * 256 * keys)


def test_gemma_4_sees_all_tokens_in_a_sixth_of_its_layers(published):
    found = published("gemma4_31b").workload.transformer
    tokens, window, hidden = 32_768, 1024, 5376
    local = 50 * 32 * 256 * window * (1 - (window - 1) / (2 * tokens))
    whole = 10 * 32 * 512 * (tokens + 1) / 2
    by_hand = 2 * found.params + 4 * (local + whole)
    assert found.forward_flop_per_token(tokens) == pytest.approx(by_hand, rel=1e-4)
    assert hidden * 262_144 == found.embedding_params


def test_experts_that_do_nothing_are_among_those_that_a_token_picks(published):
    # LongCat Team 2025: 27 B of 560 B are active on average, 8 experts of 12 picked of 512 and 256 that do nothing
    found = published("longcat_flash").workload.transformer
    assert found.top_k == 8
    assert found.active_params == pytest.approx(27e9, rel=0.05)


def test_deepseek_v4_is_that_of_the_catalogue(published):
    found, known = (
        published("deepseek_v4_flash").workload.transformer,
        workload("deepseek_v4_flash").transformer,
    )
    assert found.params == known.params
    assert found.forward_flop_per_token(4096) == pytest.approx(known.forward_flop_per_token(4096), rel=0.01)


@pytest.mark.parametrize("key", ["logit_scale_init_value", "backbone_config"])
def test_the_text_encoder_of_another_network_is_not_taken_for_it(key, tmp_path):
    text = {
        "model_type": "bert",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 9,
    }
    keys = {"model_type": "novel_detector", "text_config": text, key: {"depth": 4}}
    with pytest.raises(SpecError, match=r"novel_detector.*bert.*MODULE:FUNCTION"):
        read_config(written(tmp_path, keys))


def test_experts_of_a_dense_family_are_not_left_out(tmp_path):
    with pytest.raises(SpecError, match="num_experts=8"):
        read_config(written(tmp_path, UNKNOWN | {"model_type": "minicpm", "num_experts": 8}))


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
    "nested": b'{"model_type": "llama", "text_config": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    "not a number": b'{"model_type": "llama", "hidden_size": NaN}',
    "endless size": b'{"model_type": "llama", "hidden_size": Infinity}',
    "no heads": b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 0}',
    "layers are a list": b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": [1, 2]}',
    "no layers": b'{"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 0}',
    "name of a thousand": b'{"model_type": "' + b"x" * 1000 + b'"}',
    "two lines": b'{"model_type": "a\\nb"}',
    "pair of nothing": b'{"model_type": "clip", "text_config": 3}',
    "pyramid of nothing": b'{"model_type": "swin", "embed_dim": 96, "depths": [2, 2], "num_heads": [3]}',
    "pyramid without depth": b'{"model_type": "convnext", "depths": [], "hidden_sizes": []}',
    "sound of nothing": b'{"model_type": "wav2vec2", "hidden_size": 64, "num_hidden_layers": 1,'
    b' "num_attention_heads": 1, "vocab_size": 9, "conv_kernel": [true]}',
    "no hybrid": b'{"model_type": "jamba", "hidden_size": 64, "intermediate_size": 9, "num_hidden_layers": 1,'
    b' "num_attention_heads": 1, "vocab_size": 9}',
    "experts": b'{"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,'
    b' "vocab_size": 9, "num_local_experts": 2, "num_experts_per_tok": 4}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_file_is_refused_in_one_sentence(name, mine):
    path = mine(REFUSED[name], "config.json")
    with pytest.raises(SpecError) as refused:
        read_config(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_a_type_of_nothing_is_none(tmp_path):
    with pytest.raises(SpecError, match="no model_type"):
        read_config(written(tmp_path, {"model_type": None, "hidden_size": 64}))
    keys = DIFFUSION["sd3_medium"]["config"]
    assert read_config(written(tmp_path, {**keys, "model_type": None})).workload.params > 0


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
    "vision_config",
    "mlp_only_layers",
)
KEYS += ("intermediate_size", "depths", "num_heads", "hidden_sizes", "embed_dim", "conv_dim", "conv_kernel")
KEYS += (
    "block_configs",
    "num_query_heads",
    "num_kv_heads",
    "ffn_multipliers",
    "num_hidden_groups",
    "block_types",
)
KEYS += (
    "per_layer_config",
    "compress_ratios",
    "compress_rates",
    "linear_attn_config",
    "hybrid_layer_ids",
    "mlp_ratio",
)
KEYS += (
    "in_channels",
    "sample_size",
    "block_out_channels",
    "layers_per_block",
    "down_block_types",
    "num_layers",
)
KEYS += (
    "attention_head_dim",
    "hidden_size_per_layer_input",
    "altup_num_inputs",
    "enable_moe_block",
    "ffn_mult",
)
KEYS += ("conv_stride", "encoder_layers", "attn_type_list", "moe_k", "id2label", "image_size", "patch_size")


FAMILIES = tomllib.loads(MODEL_TYPES_FILE.read_text())["family"].values()
MODEL_TYPES = sorted(kind for family in FAMILIES if "lacks" not in family for kind in family["types"])


@pytest.mark.law
@given(
    st.sampled_from(MODEL_TYPES),
    st.dictionaries(st.sampled_from(KEYS), json_values | st.integers(0, 100)),
)
def test_no_file_ends_in_any_other_error(tmp_path_factory, kind, keys):
    path = tmp_path_factory.getbasetemp() / "config.json"
    for name in ("model_type", "_class_name"):
        path.write_text(json.dumps({**keys, name: kind}))
        with suppress(SpecError):
            read_config(path)
