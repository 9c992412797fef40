"""What the layers of models on the Hugging Face hub are made of: sizes of a transformer from a file's keys.

A plain stack, and the parts that families add to it or put in its place: the functions of _PARTS.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec.hub_keys import MOST_LAYERS, HubConfig
from equipoise.spec.transformer import Tower, Transformer

_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
_WHOLE: Final = frozenset({"full_attention", "indexed_attention"})

Sizes = dict[str, Any]


def sizes(config: HubConfig) -> Sizes:
    """The sizes of a transformer, as its record names them."""
    found: Sizes = {}
    if not _OWN_SIZES & set(config.family.parts):
        found = _stack(config)
    for part in config.family.parts:
        found = _PARTS[part](config, found)
    return {**found, **config.family.fixed}


def _stack(config: HubConfig) -> Sizes:
    """The sizes of a plain stack of layers."""
    family = config.family
    hidden = config.size("hidden")
    kinds = config.listed("layers_block_type") or config.listed("layer_types")
    heads = config.size("heads", 1 if "states_alone" in family.parts else None)
    if hidden % heads and config.stated("head_size") is None:
        raise config.refuse("head_dim", f"this size, since hidden={hidden} is no multiple of heads={heads}")
    layers = config.size("layers", len(kinds) or None, most=MOST_LAYERS)
    kv_heads = config.size("kv_heads", heads)
    # Falcon's older files state as many keys as queries, and one all the same.
    is_one_key = config.keys.get("multi_query") is True and not config.keys.get("new_decoder_architecture")
    width = config.size("embedding_width", hidden)
    projection = config.keys.get("feed_forward_proj")
    is_gated = family.gated or config.flag("use_gated_mlp", default=False)
    is_gated = is_gated or (isinstance(projection, str) and projection.startswith("gated"))
    ratio = config.keys.get("expansion_ratio", 4)
    ratio = ratio if isinstance(ratio, int) and 1 <= ratio <= MOST_LAYERS else 4
    needs_width = is_gated and "states_alone" not in family.parts and not config.stated("expert_ffn_hidden")
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": 1 if is_one_key and kv_heads == heads else kv_heads,
        "head_size": config.size("head_size", max(1, hidden // heads)),
        "ffn_hidden": config.size("ffn_hidden", None if needs_width else ratio * hidden),
        "vocabulary": 1 if family.area == "vision" else config.size("vocabulary"),
        "gated": is_gated,
        "causal": family.causal,
        "tied_embeddings": config.flag("tie_word_embeddings", default=family.tied),
        "position_embeddings": _positions(config),
        "embedding_width": 0 if width == hidden else width,
        "predicted_fraction": family.predicted_fraction,
        **_windows(config, layers),
    }


def _positions(config: HubConfig) -> int:
    """Rows of learned positions."""
    tables = config.family.position_tables
    if not tables or config.keys.get("position_embedding_type") == "rotary" or config.family.area == "vision":
        return 0
    return tables * config.size("positions")


def _windows(config: HubConfig, layers: int) -> Sizes:
    """The layers that look back a window only."""
    family, kinds = config.family, [str(each)[:40] for each in config.listed("layer_types")]
    unknown = set(kinds) - _WINDOWED - _WHOLE
    if unknown and "hybrid" not in family.parts:
        raise SpecError(
            f"{config.path}: layer_types has {', '.join(sorted(unknown)[:4])}, which is not mapped; "
            "count the model as MODULE:FUNCTION"
        )
    window = config.size("window", 0, least=0)
    has_none = family.window_every is None and not _WINDOWED & set(kinds)
    if not window or has_none or not config.flag("use_sliding_window", default=True):
        return {}
    pattern = config.keys.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG"
        every = len(pattern)
    else:
        every = config.size("window_every", family.window_every or 0, least=0)
    windowed = (
        sum(each in _WINDOWED for each in kinds) if kinds else layers - (layers // every if every else 0)
    )
    return {"window": window, "windowed_layers": windowed}


def sample_tokens(config: HubConfig, model: Transformer) -> int:
    """The tokens of a sample unless the question states them."""
    if config.family.area == "vision":
        return _patches(config.part("vision") if "pair" in config.family.parts else config)
    if "waveform" in config.family.parts:
        return _frames(config)[-1]
    most = config.size("positions", config.family.sequence_tokens)
    tables = max(1, config.family.position_tables)
    return max(1, min(config.family.sequence_tokens, most, model.position_embeddings // tables or most))


# Experts.


def _routed(config: HubConfig, found: Sizes) -> Sizes:
    """A mixture of experts in as many layers as the file states; where it has none, shared ones alone."""
    expert = config.size("expert_ffn_hidden", found["ffn_hidden"])
    shared = config.size("shared_expert_ffn_hidden", 0, least=0)
    if config.size("experts", 0, least=0) == 0:
        return found | {"ffn_hidden": shared or found["ffn_hidden"]}
    shared = shared or expert * config.size("shared_experts", 0, least=0)
    return found | {
        "experts": config.size("experts"),
        "top_k": config.size("top_k"),
        "expert_ffn_hidden": expert,
        "shared_expert_ffn_hidden": shared,
        "dense_layers": _dense_layers(config, found["layers"]),
    }


def _dense_layers(config: HubConfig, layers: int) -> int:
    """Layers of a mixture of experts whose feed-forward block is dense."""
    kinds = config.listed("mlp_layer_types")
    if kinds:
        return kinds.count("dense")
    first = config.size("first_expert_layer", 0, least=0)
    every = config.size("expert_every", 1)
    offset = config.size("expert_offset", every - 1, least=0)
    only = config.listed("mlp_only_layers")
    sparse = [each for each in range(first, layers) if (each - offset) % every == 0 and each not in only]
    return layers - len(sparse)


def _latent(config: HubConfig, found: Sizes) -> Sizes:
    """Latent attention (DeepSeek-V2)."""
    groups = config.size("expert_groups", 1)
    return found | {
        "kv_heads": found["heads"],
        "head_size": config.size("qk_nope_head_dim"),
        "query_rank": config.size("query_rank", 0, least=0),
        "kv_rank": config.size("kv_rank"),
        "rope_head_size": config.size("rope_head_size"),
        "value_head_size": config.size("v_head_dim"),
        "expert_groups": groups if groups > 1 else 0,
        "top_groups": config.size("top_groups", 1) if groups > 1 else 0,
    }


def _predicting(config: HubConfig, found: Sizes) -> Sizes:
    """Layers that predict later tokens."""
    return found | {"prediction_layers": config.size("prediction_layers", 0, least=0, most=100)}


def _llama4(config: HubConfig, found: Sizes) -> Sizes:
    """Llama 4: an expert of the same width is shared, and dense layers are wider."""
    expert, layers = found["ffn_hidden"], found["layers"]
    step = config.size("interleave_moe_layer_step", 1)
    sparse = len(config.listed("moe_layers")) or layers // step
    return found | {
        "experts": config.size("experts"),
        "top_k": config.size("top_k"),
        "expert_ffn_hidden": expert,
        "shared_expert_ffn_hidden": expert,
        "ffn_hidden": config.size("intermediate_size_mlp", expert),
        "dense_layers": layers - sparse,
    }


def _halved(_config: HubConfig, found: Sizes) -> Sizes:
    """Qwen of 2023: the width that its file states is that of both halves of the gated block."""
    return found | {"ffn_hidden": max(1, found["ffn_hidden"] // 2)}


# State spaces.

_MIXERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("M", "0", "mamba", "mamba2", "linear_attention"), "state"),
    **dict.fromkeys(("*", "1", "attention", *_WHOLE, *_WINDOWED), "attention"),
    **dict.fromkeys(("-", "mlp"), "dense"),
    **dict.fromkeys(("E", "moe"), "expert"),
}


def _hybrid(config: HubConfig, found: Sizes) -> Sizes:
    """Layers of which some mix tokens by a state space, and some by attention.

    Where layers of feed-forward blocks are stated apart, each layer is one block (Nemotron-H).
    """
    layers = found["layers"]
    pattern = config.keys.get("hybrid_override_pattern")
    stated = (
        list(pattern)
        if isinstance(pattern, str)
        else config.listed("layers_block_type")
        or config.listed("layer_types")
        or config.listed("attn_type_list")
    )
    kinds = [_MIXERS.get(str(each), "") for each in stated]
    if "" in kinds or len(kinds) > MOST_LAYERS:
        unknown = str(stated[kinds.index("")])[:40] if "" in kinds else f"{len(kinds):,} layers"
        raise SpecError(
            f"{config.path}: layers of kind {unknown!r}; expected one of {', '.join(sorted(_MIXERS))}"
        )
    if not kinds:
        count = len(config.listed("attn_layer_indices")) or layers // config.size("attention_every")
        kinds = ["attention"] * count + ["state"] * (layers - count)
    found = found | {"attention_layers": kinds.count("attention"), "state_layers": kinds.count("state")}
    dense, experts = kinds.count("dense"), kinds.count("expert")
    if not dense and not experts:
        return found
    found = found | {"layers": len(kinds), "dense_layers": dense, "expert_layers": experts}
    if not experts:
        return found
    shared = config.size("shared_expert_ffn_hidden", 0, least=0)
    return found | {
        "experts": config.size("experts"),
        "top_k": config.size("top_k"),
        "expert_ffn_hidden": config.size("expert_ffn_hidden"),
        "shared_expert_ffn_hidden": shared * config.size("shared_experts", 1, least=0),
        "expert_latent": config.size("moe_latent_size", 0, least=0),
    }


def _states(config: HubConfig, found: Sizes) -> Sizes:
    """Mamba-2, and gated delta nets, whose value heads, key size and key heads stand in the same places."""
    return found | {
        "state_heads": config.size("state_heads"),
        "state_head_size": config.size("state_head_size"),
        "state_size": config.size("state_size"),
        "state_groups": config.size("state_groups"),
    }


def _mamba1(config: HubConfig, found: Sizes) -> Sizes:
    """Mamba: each channel has a state of its own."""
    inner = config.size("state_expansion", 2) * found["hidden"]
    usual = math.ceil(found["hidden"] / 16)
    is_auto = config.keys.get(config.stated("state_rank") or "") == "auto"
    return found | {
        "state_heads": inner,
        "state_head_size": 1,
        "state_size": config.size("state_size", 16),
        "state_groups": 1,
        "state_rank": usual if is_auto else config.size("state_rank", usual),
    }


def _lightning(_config: HubConfig, found: Sizes) -> Sizes:
    """Linear attention with an output gate: queries, keys and values of all heads are of one size."""
    heads, size = found["heads"], found["head_size"]
    return found | {"state_heads": heads, "state_head_size": size, "state_size": size, "state_groups": heads}


def _states_alone(_config: HubConfig, found: Sizes) -> Sizes:
    """Layers of a state space and nothing else."""
    return found | {
        "attention_layers": 0,
        "dense_layers": 0,
        "state_layers": found["layers"],
        "kv_heads": found["heads"],
    }


def _states_beside(_config: HubConfig, found: Sizes) -> Sizes:
    """Falcon-H1: attention and a state space side by side in each layer."""
    return found | {"state_layers": found["layers"]}


# Encoders with decoders, sounds.


def _two_stacks(config: HubConfig, found: Sizes) -> Sizes:
    """An encoder, and a decoder that attends to it too, on as many tokens."""
    encoder = found["layers"]
    decoder = config.size("decoder_layers", encoder, most=MOST_LAYERS)
    return found | {
        "layers": encoder + decoder,
        "attention_layers": encoder + 2 * decoder,
        "dense_layers": encoder + decoder,
    }


def _whisper(config: HubConfig, found: Sizes) -> Sizes:
    """A decoder that attends to an encoder of 30 s of sound, a tower, before which are two convolutions."""
    tokens, hidden = config.size("max_source_positions", 1500), found["hidden"]
    heads = config.size("encoder_attention_heads", found["heads"])
    encoder = Transformer(
        layers=config.size("encoder_layers", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=max(1, hidden // heads),
        ffn_hidden=config.size("encoder_ffn_dim"),
        vocabulary=3 * (config.size("num_mel_bins", 80) + hidden),
        tied_embeddings=True,
        causal=False,
        position_embeddings=tokens,
        predicted_fraction=0.0,
    )
    return found | {
        "position_embeddings": config.size("positions"),
        "cross_layers": found["layers"],
        "cross_tokens": tokens,
        "towers": (Tower(model=encoder, tokens=tokens),),
    }


# Samples of 16 kHz to which wav2vec 2.0, HuBERT and WavLM cut what they train on, 15.6 s (Baevski et al.
# 2020, section 4.2).
_CROP_SAMPLES: Final = 250_000


def _frames(config: HubConfig) -> list[int]:
    """Tokens after each convolution over the waveform."""
    found, left = [], _CROP_SAMPLES
    for kernel, stride in zip(config.sizes("conv_kernel"), config.sizes("conv_stride"), strict=False):
        left = max(1, (left - kernel) // stride + 1)
        found.append(left)
    return found


def _waveform(config: HubConfig, found: Sizes) -> Sizes:
    """wav2vec 2.0: convolutions over the waveform, a projection, and a convolution that states positions."""
    tokens, hidden = _frames(config), found["hidden"]
    widths = config.sizes("conv_dim")
    kernels = config.sizes("conv_kernel")
    layers = zip((1, *widths), widths, kernels, tokens, strict=False)
    towers = [_convolution(before * kernel, width, each) for before, width, kernel, each in layers]
    kernel, groups = (
        config.size("num_conv_pos_embeddings", 128),
        config.size("num_conv_pos_embedding_groups", 16),
    )
    towers.append(_convolution(widths[-1], hidden, tokens[-1]))
    towers.append(_convolution(hidden * kernel // groups, hidden, tokens[-1]))
    return found | {"towers": tuple(towers)}


def _convolution(columns: int, channels: int, tokens: int) -> Tower:
    """A convolution as a layer of as many weights: `columns` inputs, channels by kernel, to each channel."""
    return Tower(model=_blocks_of(1, channels, ffn_hidden=max(1, round(columns / 2))), tokens=tokens)


def _blocks_of(layers: int, hidden: int, *, ffn_hidden: int) -> Transformer:
    """A stack of feed-forward blocks of two matrices."""
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=1,
        kv_heads=1,
        head_size=1,
        ffn_hidden=ffn_hidden,
        vocabulary=1,
        tied_embeddings=True,
        causal=False,
        attention_layers=0,
        predicted_fraction=0.0,
    )


# Images.


def _image(config: HubConfig, found: Sizes) -> Sizes:
    """A vision transformer: no vocabulary; a matrix embeds patches, and another makes classes."""
    tokens = _patches(config)
    pixels = config.size("num_channels", 3) * config.size("patch_size", 16) ** 2
    has_positions = config.family.position_tables and config.keys.get("rope_theta") is None
    return found | {
        "position_embeddings": tokens if has_positions else 0,
        "vocabulary": pixels + _classes(config),
        "tied_embeddings": True,
        "predicted_fraction": 1 / tokens,
    }


def _pooled(config: HubConfig, found: Sizes) -> Sizes:
    """SigLIP: a last layer pools by attention of one token."""
    if not config.flag("vision_use_head", default=True):
        return found
    last = {"layers": 1, "vocabulary": 1, "position_embeddings": 0, "predicted_fraction": 0.0}
    return found | {"towers": (Tower(model=Transformer(**found | last), tokens=1),)}


def _classes(config: HubConfig) -> int:
    """Classes that a file names; 0 where it names none."""
    names = config.keys.get("id2label")
    return len(names) if isinstance(names, dict) else config.size("num_labels", 0, least=0)


def _patches(config: HubConfig) -> int:
    """Patches of an image, the class token and registers."""
    if config.stated("num_patches") is not None:
        return config.size("num_patches")
    if "pyramid" in config.family.parts:
        return _stages(config)[-1].tokens
    side = config.size("image_size", 224) // config.size("patch_size", 16)
    if side < 1:
        raise config.refuse("image_size", f"at least patch_size={config.keys.get('patch_size', 16)}")
    return side * side + 1 + config.size("num_register_tokens", 0, least=0)


class _Stage(Struct, frozen=True, kw_only=True):
    """A stage of a pyramid: so many layers of so many channels on so many tokens."""

    layers: int
    channels: int
    tokens: int


def _stages(config: HubConfig) -> list[_Stage]:
    """The stages of a pyramid of images, whose sides are halved from one to the next."""
    depths = config.sizes("depths")
    first = config.size("embed_dim", 0, least=0)
    widths = [first * 2**stage for stage in range(len(depths))] if first else config.sizes("hidden_sizes")
    side = config.size("image_size", 224) // config.size("patch_size", 4)
    is_deep = len(depths) > _MOST_STAGES or max(depths) > MOST_LAYERS
    if len(widths) != len(depths) or is_deep or side < 2 ** (len(depths) - 1):
        raise config.refuse(
            "depths",
            f"at most {_MOST_STAGES} stages of {MOST_LAYERS:,} layers, as many widths, and an image that can "
            "be halved so often",
        )
    return [
        _Stage(layers=depth, channels=width, tokens=(side // 2**stage) ** 2)
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True))
    ]


_MOST_STAGES: Final = 8
# Weights a channel of ConvNeXt's convolution of 7 by 7, which mixes tokens of one channel.
_DEPTHWISE: Final = 49


def _pyramid(config: HubConfig, _found: Sizes) -> Sizes:
    """Swin and ConvNeXt: stages of fewer tokens and more channels, each after a matrix that merges patches.

    The last stage is the stack itself; the others and the matrices are towers.
    """
    stages, towers, before = _stages(config), [], config.size("num_channels", 3)
    merged = config.size("patch_size", 4) ** 2
    models = [_stage(config, index, stage) for index, stage in enumerate(stages)]
    for stage, model in zip(stages, models, strict=True):
        towers.append(_convolution(before * merged, stage.channels, stage.tokens))
        towers.append(Tower(model=model, tokens=stage.tokens))
        before, merged = stage.channels, 4
    last = towers.pop().model
    return {name: getattr(last, name) for name in Transformer.__struct_fields__} | {
        "vocabulary": max(1, _classes(config)),
        "predicted_fraction": 1 / stages[-1].tokens,
        "towers": tuple(towers),
    }


def _stage(config: HubConfig, index: int, stage: _Stage) -> Transformer:
    """The layers of one stage: attention in windows, or a convolution of each channel."""
    heads = config.sizes("num_heads") if config.keys.get("num_heads") is not None else []
    if not heads:
        return _blocks_of(stage.layers, stage.channels, ffn_hidden=4 * stage.channels + round(_DEPTHWISE / 2))
    if len(heads) <= index or stage.channels % heads[index]:
        raise config.refuse("num_heads", "a number for each of depths, which divides its width")
    return replace(
        _blocks_of(stage.layers, stage.channels, ffn_hidden=4 * stage.channels),
        heads=heads[index],
        kv_heads=heads[index],
        head_size=stage.channels // heads[index],
        attention_layers=stage.layers,
        window=config.size("window_size", 7) ** 2,
        windowed_layers=stage.layers,
    )


def _pair(config: HubConfig, _found: Sizes) -> Sizes:
    """CLIP: an encoder of images, and one of texts in a tower."""
    images, words = sizes(config.part("vision")), Transformer(**sizes(config.part("text")))
    tower = Tower(model=words, tokens=max(1, words.position_embeddings))
    return images | {"towers": (*images.get("towers", ()), tower)}


# Parts that need no plain stack.
_OWN_SIZES: Final = frozenset({"pair", "pyramid"})
_PARTS: Final[Mapping[str, Callable[[HubConfig, Sizes], Sizes]]] = {
    "experts": _routed,
    "latent": _latent,
    "predicting": _predicting,
    "llama4": _llama4,
    "halved": _halved,
    "hybrid": _hybrid,
    "states": _states,
    "mamba1": _mamba1,
    "lightning": _lightning,
    "states_alone": _states_alone,
    "states_beside": _states_beside,
    "two_stacks": _two_stacks,
    "whisper": _whisper,
    "waveform": _waveform,
    "image": _image,
    "pooled": _pooled,
    "pyramid": _pyramid,
    "pair": _pair,
}
