"""Converts a model's config.json from the Hugging Face hub to a workload.

Layers are a plain stack, to which the parts of a family (_PARTS) add or which they replace. No network
access, and no code from the file is run.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from equipoise.errors import DataError, SpecError
from equipoise.files import parsed_json, read_input
from equipoise.spec import is_number, shown
from equipoise.spec.hub_diffusion import (
    UNet,
    denoiser_image,
    denoiser_sizes,
    denoiser_tokens,
    latents,
    with_frozen,
)
from equipoise.spec.hub_keys import (
    MOST_LAYERS,
    MOST_NAME,
    WHOLE,
    WINDOWED,
    HubConfig,
    Sizes,
    family_of_type,
    hub_config,
    is_factor,
)
from equipoise.spec.hub_media import (
    MEDIA_PARTS,
    num_frames,
    num_patches,
    num_series_tokens,
    patched_image,
    prompted_towers,
)
from equipoise.spec.hub_mixed import MIXED_PARTS
from equipoise.spec.transformer import CompressedKeys, Tower, Transformer
from equipoise.spec.workload import Workload
from equipoise.units import BF16_BYTES, format_count, format_si

_MOST_BYTES: Final = 1_000_000
# Keys under which multimodal models store the configuration of their language model.
_LANGUAGE: Final = ("text_config", "llm_config", "language_config", "thinker_config")
# A key of models that compare texts and images.
_PAIRED: Final = "logit_scale_init_value"
# Tables of a file whose names look like models but that do not describe one.
_NO_MODEL: Final = frozenset(
    {"attn_config", "ffn_config", "quantization_config", "linear_attn_config", "per_layer_config", *_LANGUAGE}
)
_SAMPLES: Final[Mapping[str, str]] = {"vision": "image", "speech": "utterance", "forecasting": "series"}


class HubModel(Struct, frozen=True, kw_only=True):
    """The workload of a config.json. left_out: parts of the file that the workload does not represent.

    assumed: the assumptions about an unknown model, in words.
    """

    workload: Workload
    left_out: tuple[str, ...] = ()
    of_samples: str | None = None
    assumed: str | None = None


def read_config(path: Path) -> HubModel:
    """Return the model of a config.json.

    An unknown type is read as a decoder like Llama, with a note in `assumed`, if the file has all its sizes
    and nothing that such a model lacks. Raises SpecError in one sentence if the file is invalid, or the model
    cannot be described.
    """
    outer, path = _model_of(_read(path), path)
    keys, is_nested = outer, False
    kind = _kind_of(outer)
    family = family_of_type(kind)
    while family is None or "pair" not in family.parts:
        inner = next((key for key in _LANGUAGE if isinstance(keys.get(key), dict)), None)
        if inner is None:
            break
        keys, is_nested = keys[inner], True
        if family_of_type(keys.get("model_type")) or family is None:
            kind = keys.get("model_type", kind)
        family = family_of_type(kind)
    config = hub_config(path, keys, kind=kind, is_nested=is_nested)
    family = config.family
    is_unknown = is_nested and family_of_type(outer.get("model_type")) is None
    if is_unknown and (_PAIRED in outer or not family.causal or not family.predicted_fraction):
        raise SpecError(
            f"{path}: model_type={shown(outer.get('model_type'))} is not known, and its text part alone "
            f"({kind}) is an encoder beside other networks; count it as MODULE:FUNCTION"
        )
    facts = _unet_facts(config) if "unet" in family.parts else _transformer_facts(config)
    model = facts.get("transformer")
    amount = f"{format_si(facts['params'])} parameters"
    name = outer.get("_name_or_path")
    title = f"{kind} of {amount}"
    if model is not None and isinstance(name, str) and 0 < len(name) <= MOST_NAME and name.isprintable():
        title = name
    assumed = None
    if family_of_type(kind) is None:
        assumed = (
            f"model_type={kind} is not known: read as a decoder like Llama{_further(family.parts)}, of "
            f"{amount}; compare them with the model card"
        )
    workload = Workload(
        slug=re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "config",
        title=title,
        area=family.area,
        source=f"{path.name} ({'model_type ' if 'model_type' in outer else ''}{kind})",
        sample=_sample_name(config),
        **facts,
        usual_batch_samples=family.usual_batch_samples,
        usual_batch_source=family.usual_batch_source,
    )
    return HubModel(
        workload=with_frozen(workload, config),
        of_samples=_samples_words(config, facts.get("sequence_tokens")),
        left_out=_left_out(config, outer),
        assumed=assumed,
    )


# A pipeline's second network for other noise levels, as in Wan 2.2, which is trained separately.
_SECOND: Final = ("transformer_2", "unet_2")
# Classes for which older files of diffusers have a single name, by the norm of their layers.
_CLASS_OF_NORM: Final = {
    "ada_norm_zero": "DiTTransformer2DModel",
    "ada_norm_single": "PixArtTransformer2DModel",
}


def _kind_of(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever a file states
    """Return the type of a model stated in a file, which is `_class_name` in diffusers.

    Source: diffusers, models/modeling_utils.py (LegacyModelMixin).
    """
    kind = found["_class_name"] if found.get("model_type") is None else found["model_type"]
    norm = found.get("norm_type")
    return _CLASS_OF_NORM.get(str(norm), kind) if kind == "Transformer2DModel" else kind


def _read(path: Path) -> dict[str, Any]:
    """Return the document. Raises SpecError if it is not a small JSON object."""
    try:
        content = read_input(path, _MOST_BYTES, expected="the config.json of a model")
    except DataError as err:
        raise SpecError(str(err)) from err
    try:
        found = parsed_json(content)
    except (ValueError, RecursionError) as err:
        raise SpecError(f"{path}: not JSON: {str(err)[:100]}; expected the config.json of a model") from err
    kind = found.get("_class_name") if isinstance(found, dict) else None
    is_of_diffusers = isinstance(kind, str) and len(kind) <= MOST_NAME and kind.isprintable()
    if not isinstance(found, dict) or (found.get("model_type") is None and not is_of_diffusers):
        raise SpecError(f"{path}: no model_type; expected a config.json of transformers or diffusers")
    return found


def _model_of(found: dict[str, Any], path: Path) -> tuple[dict[str, Any], Path]:
    """Return the model's document and path; for a pipeline of diffusers, those of its denoiser."""
    part = next((each for each in ("transformer", "unet") if isinstance(found.get(each), list)), None)
    if found.get("model_type") is not None or part is None:
        return found, path
    inner = path.parent / part / "config.json"
    if not inner.is_file():
        raise SpecError(
            f"{path}: the {part} of a {shown(found['_class_name'])} is in {part}/config.json, which is not "
            "in its folder; give that file"
        )
    return {**_read(inner), **{key: found[key] for key in _SECOND if key in found}}, inner


def _transformer_facts(config: HubConfig) -> dict[str, Any]:
    """Return the workload's fields for a transformer. Raises SpecError if its sizes are invalid."""
    try:
        model = Transformer(**_sizes(config))
    except SpecError as err:
        where = "" if str(err).startswith(f"{config.path}:") else f"{config.path}: "
        raise SpecError(f"{where}{err}") from err
    return {
        "params": float(model.params),
        "transformer": model,
        "sequence_tokens": _sample_tokens(config, model),
        "image": patched_image(config) if config.family.denoiser is None else denoiser_image(config),
    }


def _unet_facts(config: HubConfig) -> dict[str, Any]:
    """Return the workload's fields for a U-Net: its figures per sample."""
    found = UNet(config)
    return {
        "params": float(found.params),
        "forward_flop_per_sample": float(found.forward_flop),
        "activation_bytes_per_sample": float(BF16_BYTES * found.kept_values),
        "boundary_bytes_per_sample": float(BF16_BYTES * found.widest_values),
        "layers": found.layers,
        "adapter_width": found.adapter_width,
        "linear_adapter_width": found.adapter_width + found.linear_adapter_width,
        "image": found.image,
    }


def _sample_name(config: HubConfig) -> str:
    """Return the word for a sample."""
    if config.family.denoiser is not None:
        return "video" if latents(config).pixel_frames > 1 else "image"
    return _SAMPLES.get(config.family.area, "sequence")


def _samples_words(config: HubConfig, tokens: int | None) -> str | None:
    """Return a description of a sample of a diffusion model; None for other models.

    tokens: None if a sample has none.
    """
    about = config.family.denoiser
    if about is None:
        return None
    words = latents(config).words
    if tokens is not None:
        words += f": {format_count(tokens)} tokens"
        words += f", {about.text_tokens} of text among them" if about.joins_text and about.text_tokens else ""
    return words


def _further(parts: tuple[str, ...]) -> str:
    """Return a description of what an assumed family has in addition to Llama's layers."""
    words = {"experts": "experts", "latent": "latent attention"}
    found = " and ".join(words[part] for part in parts if part in words)
    return f" with {found}" if found else ""


def _left_out(config: HubConfig, outer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the sizes do not represent: other models, keys of parts, and omissions of the family."""
    family = config.family
    parts = [] if "predicting" in family.parts else ["num_nextn_predict_layers"]
    models = {
        key for key, value in outer.items() if key.endswith("_config") and value and isinstance(value, dict)
    }
    models -= _NO_MODEL
    models |= {key for key in _SECOND if isinstance(outer.get(key), list)}
    if "pair" in family.parts:
        models -= {"vision_config"}
    if "prompted" in family.parts:
        models -= {"vision_config", "prompt_encoder_config", "mask_decoder_config"}
    further = [each for each in ("quantization_config", *parts) if config.keys.get(each)]
    return (*sorted(models), *further, *((family.without,) if family.without else ()))


# Layers.


def _sizes(config: HubConfig) -> Sizes:
    """Return the sizes of a transformer by the names of its fields."""
    found: Sizes = {}
    if not _OWN_SIZES & set(config.family.parts):
        found = _stack(config)
    for part in config.family.parts:
        found = _PARTS[part](config, found)
    return {**found, **config.family.fixed}


def _stack(config: HubConfig) -> Sizes:
    """Return the sizes of a plain stack of layers."""
    family = config.family
    hidden = config.size("hidden")
    kinds = config.listed("layers_block_type") or config.listed("layer_types")
    heads = config.size(
        "heads", 1 if {"states_alone", "recurrent", "layer_lists"} & set(family.parts) else None
    )
    if hidden % heads and config.stated("head_size") is None:
        why = f"the size of a head, since hidden={hidden} is no multiple of heads={heads}"
        raise config.refuse("head_dim", why)
    layers = config.size("layers", len(kinds) or None, most=MOST_LAYERS)
    kv_heads = heads if "layer_lists" in family.parts else config.size("kv_heads", heads)
    # Falcon's older files state as many key heads as query heads, although there is a single one.
    is_one_key = config.keys.get("multi_query") is True and not config.keys.get("new_decoder_architecture")
    width = config.size("embedding_width", hidden)
    projection = config.keys.get("feed_forward_proj")
    is_gated = family.gated or config.flag("use_gated_mlp", default=False)
    is_gated = is_gated or (isinstance(projection, str) and projection.startswith("gated"))
    ratio = config.keys.get("expansion_ratio", family.ffn_ratio)
    ratio = ratio if is_number(ratio) and 1 <= ratio <= MOST_LAYERS else family.ffn_ratio
    has_own_width = {"states_alone", "layer_lists", "block_configs"} & set(
        family.parts
    ) or family.has_ffn_ratio
    needs_width = is_gated and not has_own_width and not config.stated("expert_ffn_hidden")
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": 1 if is_one_key and kv_heads == heads else kv_heads,
        "head_size": config.size("head_size", max(1, hidden // heads)),
        "ffn_hidden": config.size("ffn_hidden", None if needs_width else int(ratio * hidden)),
        "vocabulary": 1 if family.area == "vision" else _vocabulary(config),
        "gated": is_gated,
        "causal": family.causal,
        "tied_embeddings": config.flag("tie_word_embeddings", default=family.tied),
        "position_embeddings": _positions(config),
        "embedding_width": 0 if width == hidden else width,
        "predicted_fraction": family.predicted_fraction,
        **_windows(config, layers),
    }


def _vocabulary(config: HubConfig) -> int:
    """Return the rows of the token table; models of series, or of sound without text output, need none."""
    has_none = {"conformer", "series"} & set(config.family.parts)
    return config.size("vocabulary", 1 if has_none else None)


def _positions(config: HubConfig) -> int:
    """Return the rows of learned position embeddings."""
    tables = config.family.position_tables
    if not tables or config.keys.get("position_embedding_type") == "rotary" or config.family.area == "vision":
        return 0
    return tables * config.size("positions")


# Parts that read kinds of layers of their own.
_WITH_KINDS: Final = frozenset({"hybrid", "compressed", "shared_blocks"})


def _windows(config: HubConfig, layers: int) -> Sizes:
    """Return the sizes of layers with windowed attention."""
    family, kinds = config.family, [str(each)[:40] for each in config.listed("layer_types")]
    unknown = set(kinds) - WINDOWED - WHOLE
    if unknown and not _WITH_KINDS & set(family.parts):
        raise SpecError(
            f"{config.path}: layer_types has {', '.join(sorted(unknown)[:4])}, which is not mapped; "
            "count the model as MODULE:FUNCTION"
        )
    window = config.size("window", 0, least=0)
    has_none = family.window_every is None and not WINDOWED & set(kinds)
    if not window or has_none or not config.flag("use_sliding_window", default=True):
        return {}
    pattern = config.keys.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG"
        every = len(pattern)
    else:
        every = config.size("window_every", family.window_every or 0, least=0)
    windowed = (
        sum(each in WINDOWED for each in kinds) if kinds else layers - (layers // every if every else 0)
    )
    return {"window": window, "windowed_layers": windowed}


def _sample_tokens(config: HubConfig, model: Transformer) -> int:
    """Return the default tokens per sample."""
    if config.family.denoiser is not None:
        return denoiser_tokens(config)
    if config.family.area == "vision":
        has_parts = {"pair", "prompted"} & set(config.family.parts)
        return num_patches(config.part("vision") if has_parts else config)
    if "waveform" in config.family.parts:
        return num_frames(config)[-1]
    if "series" in config.family.parts:
        return num_series_tokens(config)
    most = config.size("positions", config.family.sequence_tokens)
    tables = max(1, config.family.position_tables)
    return max(1, min(config.family.sequence_tokens, most, model.position_embeddings // tables or most))


# Experts.


def _routed(config: HubConfig, found: Sizes) -> Sizes:
    """Add a mixture of experts in the stated number of layers; only shared experts if none are routed."""
    expert = config.size("expert_ffn_hidden", found["ffn_hidden"])
    shared = config.size("shared_expert_ffn_hidden", 0, least=0)
    if config.size("experts", 0, least=0) == 0:
        return found | {"ffn_hidden": shared or found["ffn_hidden"]}
    shared = shared or expert * config.size("shared_experts", 0, least=0)
    return found | {
        **config.experts(expert),
        "shared_expert_ffn_hidden": shared,
        "dense_layers": _dense_layers(config, found["layers"]),
    }


def _dense_layers(config: HubConfig, layers: int) -> int:
    """Return the number of layers of a mixture of experts with a dense feed-forward block."""
    kinds = config.listed("mlp_layer_types")
    if kinds:
        return kinds.count("dense")
    if isinstance(config.keys.get("moe_layer_freq"), list):
        return config.listed("moe_layer_freq").count(0)
    first = config.size("first_expert_layer", 0, least=0)
    every = config.size("expert_every", 1)
    offset = config.size("expert_offset", every - 1, least=0)
    only = config.listed("mlp_only_layers")
    sparse = [each for each in range(first, layers) if (each - offset) % every == 0 and each not in only]
    return layers - len(sparse)


def _latent(config: HubConfig, found: Sizes) -> Sizes:
    """Add latent attention (DeepSeek-V2), unless the file disables it (DeepSeek-VL2 Tiny, DeepSeek-OCR)."""
    groups = config.size("expert_groups", 1)
    limits = {
        "expert_groups": groups if groups > 1 else 0,
        "top_groups": config.size("top_groups", 1) if groups > 1 else 0,
    }
    if not config.flag("use_mla", default=True):
        return found | limits
    return (
        found
        | limits
        | {
            "kv_heads": found["heads"],
            "head_size": config.size("qk_nope_head_dim"),
            "query_rank": config.size("query_rank", 0, least=0),
            "kv_rank": config.size("kv_rank"),
            "rope_head_size": config.size("rope_head_size"),
            "value_head_size": config.size("v_head_dim", found.get("value_head_size")),
        }
    )


def _llama4(config: HubConfig, found: Sizes) -> Sizes:
    """Llama 4: an expert of the same width is shared, and dense layers are wider."""
    expert, layers = found["ffn_hidden"], found["layers"]
    step = config.size("interleave_moe_layer_step", 1)
    sparse = len(config.listed("moe_layers")) or layers // step
    return found | {
        **config.experts(expert),
        "shared_expert_ffn_hidden": expert,
        "ffn_hidden": config.size("intermediate_size_mlp", expert),
        "dense_layers": layers - sparse,
    }


def _adjusted(config: HubConfig, found: Sizes) -> Sizes:
    """LFM2: two thirds of the stated width, up to a multiple."""
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return found
    factor, step = config.keys.get("block_ffn_dim_multiplier", 1), config.size("block_multiple_of", 256)
    if not is_factor(factor):
        raise config.refuse("block_ffn_dim_multiplier", "a number")
    return found | {"ffn_hidden": -(-int(factor * int(2 * found["ffn_hidden"] / 3)) // step) * step}


def _expert_stacks(config: HubConfig, found: Sizes) -> Sizes:
    """Experts in every n-th layer of an encoder and a decoder (Switch Transformer, NLLB)."""
    encoder, layers = config.size("layers", most=MOST_LAYERS), found["layers"]
    decoder = layers - encoder
    sparse = sum(
        config.size(f"num_sparse_{kind}_layers", count // config.size(f"{kind}_sparse_step", 1), least=0)
        for kind, count in (("encoder", encoder), ("decoder", decoder))
    )
    return found | {
        **config.experts(found["ffn_hidden"]),
        "dense_layers": max(0, layers - sparse),
        "expert_layers": min(layers, sparse),
    }


def _dense_beside(config: HubConfig, found: Sizes) -> Sizes:
    """Arctic: each layer has a dense block parallel to the experts, as wide as the layer."""
    layers = found["layers"]
    sparse = layers // config.size("expert_every", 1)
    has_dense = config.flag("use_residual", default=True)
    found = found | {
        **config.experts(found["ffn_hidden"]),
        "expert_layers": sparse,
        "dense_layers": layers if has_dense else layers - sparse,
    }
    return found | {"ffn_hidden": found["hidden"]} if has_dense else found


def _shortcut(config: HubConfig, found: Sizes) -> Sizes:
    """LongCat: two attention and two dense blocks per layer, parallel to experts, some without effect."""
    layers, experts = found["layers"], config.experts()
    places = experts["experts"] + config.size("zero_expert_num", 0, least=0)
    return found | {
        **experts,
        "top_k": max(1, round(experts["top_k"] * experts["experts"] / places)),
        "attention_layers": 2 * layers,
        "dense_layers": 2 * layers,
        "expert_layers": layers,
    }


_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"


def _compressed(config: HubConfig, found: Sizes) -> Sizes:
    """DeepSeek-V4: windowed keys, and older keys compressed 4 to 1, selected by an index, or 128 to 1."""
    rates: dict[str, Any] = {_SPARSE: 4, _HEAVY: 128, **config.table("compress_rates")}
    ratios = config.listed("compress_ratios") or [
        rates.get(str(each), 0) for each in config.listed("layer_types")
    ]
    sparse, heavy = rates[_SPARSE], rates[_HEAVY]
    counts = Counter(each if isinstance(each, int) else -1 for each in ratios[: found["layers"]])
    if isinstance(sparse, dict) or isinstance(heavy, dict) or not {sparse, heavy, 0} >= set(counts):
        raise config.refuse("compress_ratios", f"0, {sparse} or {heavy} for each layer")
    return found | {
        "query_rank": config.size("query_rank"),
        "kv_shared": True,
        "output_rank": config.size("o_lora_rank"),
        "output_groups": config.size("o_groups"),
        "window": config.size("window"),
        "windowed_layers": found["layers"],
        "compressed": CompressedKeys(
            sparse_layers=counts[sparse],
            sparse_ratio=sparse,
            top_k=config.size("index_topk"),
            index_heads=config.size("index_n_heads"),
            index_head_size=config.size("index_head_dim"),
            heavy_layers=counts[heavy],
            heavy_ratio=heavy,
        ),
    }


# Encoders with decoders, pairs.


def _two_stacks(config: HubConfig, found: Sizes) -> Sizes:
    """An encoder, and a decoder on as many tokens that also attends to the encoder."""
    encoder = found["layers"]
    decoder = config.size("decoder_layers", encoder, most=MOST_LAYERS)
    return found | {
        "layers": encoder + decoder,
        "attention_layers": encoder + 2 * decoder,
        "dense_layers": encoder + decoder,
    }


def _pair(config: HubConfig, _found: Sizes) -> Sizes:
    """CLIP: an image encoder, and a text encoder as tower."""
    images, words = _sizes(config.part("vision")), Transformer(**_sizes(config.part("text")))
    tower = Tower(model=words, tokens=max(1, words.position_embeddings))
    return images | {"towers": (*images.get("towers", ()), tower)}


def _prompted(config: HubConfig, _found: Sizes) -> Sizes:
    """SAM: an image encoder, followed by a small mask decoder."""
    images = config.part("vision")
    found = _sizes(images)
    return found | {"towers": prompted_towers(images, found["hidden"], num_patches(images))}


# Parts that need no plain stack.
_OWN_SIZES: Final = frozenset({"pair", "prompted", "pyramid", "denoiser"})
_PARTS: Final[Mapping[str, Callable[[HubConfig, Sizes], Sizes]]] = {
    **MIXED_PARTS,
    **MEDIA_PARTS,
    "experts": _routed,
    # MiniCPM3: the width of values in latent attention, which its files leave out.
    "even_values": lambda _, found: found | {"value_head_size": found["hidden"] // found["heads"]},
    "latent": _latent,
    # Layers that predict later tokens.
    "predicting": lambda config, found: (
        found | {"prediction_layers": config.size("prediction_layers", 0, least=0, most=100)}
    ),
    "llama4": _llama4,
    # Qwen of 2023: the stated width is that of both halves of the gated block.
    "halved": lambda _, found: found | {"ffn_hidden": max(1, found["ffn_hidden"] // 2)},
    "adjusted": _adjusted,
    "expert_stacks": _expert_stacks,
    "dense_beside": _dense_beside,
    "shortcut": _shortcut,
    "compressed": _compressed,
    "denoiser": denoiser_sizes,
    "two_stacks": _two_stacks,
    "pair": _pair,
    "prompted": _prompted,
}
