"""Hugging Face models whose layers differ from each other, share weights, or have no attention."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec.hub_keys import MOST_LAYERS, WHOLE, WINDOWED, HubConfig, Sizes, is_factor, is_whole
from equipoise.spec.transformer import Tower, Transformer, feed_forward_stack, matrix_tower

# State spaces.

_MIXERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("M", "0", "mamba", "mamba2", "linear_attention", "conv", "recurrent"), "state"),
    **dict.fromkeys(("*", "1", "attention", *WHOLE, *WINDOWED), "attention"),
    **dict.fromkeys(("-", "mlp"), "dense"),
    **dict.fromkeys(("E", "moe"), "expert"),
}


def _hybrid(config: HubConfig, found: Sizes) -> Sizes:
    """A hybrid of state-space layers and attention layers.

    If feed-forward layers are listed separately, each layer is a single block (Nemotron-H).
    """
    layers = found["layers"]
    pattern = config.keys.get("hybrid_override_pattern")
    stated = (
        list(pattern)
        if isinstance(pattern, str)
        else config.listed("layers_block_type")
        or config.listed("layer_types")
        or config.listed("attn_type_list")
        or _cycled(config.listed("block_types"), layers)
    )
    kinds = [_MIXERS.get(str(each), "") for each in stated]
    if "" in kinds or len(kinds) > MOST_LAYERS:
        unknown = str(stated[kinds.index("")])[:40] if "" in kinds else f"{len(kinds):,} layers"
        raise SpecError(
            f"{config.path}: layers of kind {unknown!r}; expected one of {', '.join(sorted(_MIXERS))}"
        )
    if not kinds:
        lists = ("attn_layer_indices", "full_attn_layers", "full_attn_idxs")
        indices = next((config.listed(each) for each in lists if config.listed(each)), [])
        count = len(indices) or layers // config.size("attention_every")
        kinds = ["attention"] * count + ["state"] * (layers - count)
    attention = kinds.count("attention")
    found = found | {"attention_layers": attention, "state_layers": kinds.count("state")}
    if "windowed_layers" in found:  # a window of all layers is one of those that attend
        found["windowed_layers"] = min(found["windowed_layers"], attention)
    dense, experts = kinds.count("dense"), kinds.count("expert")
    if not dense and not experts:
        return found
    found = found | {"layers": len(kinds), "dense_layers": dense, "expert_layers": experts}
    if not experts:
        return found
    shared = config.size("shared_expert_ffn_hidden", 0, least=0)
    return found | {
        **config.experts(),
        "shared_expert_ffn_hidden": shared * config.size("shared_experts", 1, least=0),
        "expert_latent": config.size("moe_latent_size", 0, least=0),
    }


def _cycled(kinds: list[Any], layers: int) -> list[Any]:
    """Return the kinds of `layers` layers, repeated cyclically."""
    return [kinds[layer % len(kinds)] for layer in range(layers)] if kinds else []


def _mamba1(config: HubConfig, found: Sizes) -> Sizes:
    """Mamba-1, in which each channel has its own state."""
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
    """Linear attention with an output gate; queries, keys and values of all heads have one size."""
    heads, size = found["heads"], found["head_size"]
    return found | {"state_heads": heads, "state_head_size": size, "state_size": size, "state_groups": heads}


def _recurrent(config: HubConfig, found: Sizes) -> Sizes:
    """Linear recurrences with `state_matrices` square matrices per layer, and low-rank ones."""
    family, hidden = config.family, found["hidden"]
    of_size = max(1, hidden // config.size("head_size", hidden))
    heads = config.size("state_heads", found["heads"] if config.stated("heads") else of_size)
    usual = heads * config.size("state_head_size", 1) if config.stated("state_head_size") else hidden
    width = config.size("recurrent_width", usual)
    heads = heads if family.has_matrix_states else width
    narrow = sum(config.size(key, 0, least=0) for key in family.low_ranks)
    if "hybrid" not in family.parts:
        found = found | {"attention_layers": 0, "state_layers": found["layers"], "kv_heads": found["heads"]}
    return found | {
        "state_heads": heads,
        "state_head_size": max(1, width // heads),
        "state_size": max(1, width // heads) if family.has_matrix_states else 1,
        "state_groups": heads if family.has_matrix_states else 1,
        "state_width": round(family.state_matrices * width) + 2 * narrow,
    }


# Layers of several sizes, or of the same weights.


def _repeated(config: HubConfig, found: Sizes) -> Sizes:
    """ALBERT: groups of layers of the same weights."""
    groups = config.size("num_hidden_groups", 1)
    if found["layers"] % groups:
        raise config.refuse("num_hidden_groups", f"a divisor of its {found['layers']} layers")
    return found | {"repeats": found["layers"] // groups}


def _mixed_layers(found: Sizes, layers: Sequence[Sizes]) -> Sizes:
    """Return a stack of layers of several sizes: the most frequent kind is the stack, other kinds are towers.

    layers: for each layer, the sizes that override `found`.
    """
    counts = Counter(tuple(sorted(each.items())) for each in layers)
    (first, count), *others = counts.most_common()
    towers = [
        Tower(model=Transformer(**_alike(found | dict(kind), number) | _NO_TABLES), tokens=0)
        for kind, number in others
    ]
    return _alike(found | dict(first), count) | {"towers": (*found.get("towers", ()), *towers)}


_NO_TABLES: Final = {
    "vocabulary": 1,
    "tied_embeddings": True,
    "position_embeddings": 0,
    "embedding_width": 0,
    "predicted_fraction": 0.0,
    "towers": (),
}


def _alike(layer: Sizes, count: int) -> Sizes:
    """Return `count` equal layers, each with at most one attention and one feed-forward block."""
    usual = {"attention_layers": 1, "dense_layers": 1, "expert_layers": 0, "windowed_layers": 0}
    return layer | {name: count * layer.get(name, each) for name, each in usual.items()} | {"layers": count}


def _gemma4(config: HubConfig, found: Sizes) -> Sizes:
    """Gemma 4: layers with full attention have wider heads, and later layers may be twice as wide.

    Keys that are also used as values are computed once.
    """
    layers, window = found["layers"], found.get("window", 0)
    every = config.family.window_every or 1
    kinds = [str(each) for each in config.listed("layer_types")] or [
        "sliding_attention" if layer % every and layer < layers else "full_attention"
        for layer in range(1, layers + 1)
    ]
    if len(kinds) != layers:
        raise config.refuse("layer_types", f"one for each of {layers} layers")
    stated = config.table("per_layer_config").values()
    own: Mapping[str, Any] = next((each for each in stated if isinstance(each, dict)), {})
    wider = {key: value for key, value in own.items() if key in ("head_dim", "num_key_value_heads")}
    whole = HubConfig(path=config.path, keys={**config.keys, **wider}, family=config.family)
    is_wide = config.flag("use_double_wide_mlp", default=False)
    first_shared = layers - config.size("num_kv_shared_layers", 0, least=0)
    of_whole = {
        "head_size": config.size("global_head_dim", whole.size("head_size", found["head_size"])),
        "kv_heads": config.size("num_global_key_value_heads", whole.size("kv_heads", found["kv_heads"])),
        "kv_shared": config.flag("attention_k_eq_v", default=False),
    }
    found = {**found, "window": window, "windowed_layers": 0}
    if config.flag("enable_moe_block", default=False):
        found |= config.experts()
    return _mixed_layers(
        found,
        [
            {"ffn_hidden": found["ffn_hidden"] * (2 if is_wide and layer >= first_shared else 1)}
            | ({"expert_layers": 1} if "experts" in found else {})
            | (of_whole if kind in WHOLE else {"windowed_layers": 1 if window else 0})
            for layer, kind in enumerate(kinds)
        ],
    )


def _two_attentions(config: HubConfig, found: Sizes) -> Sizes:
    """MiMo-V2 and Laguna: layers with windowed attention have other numbers of heads or keys.

    Dense layers come first. MiMo's class doubles the keys of windowed layers if its file does not state them.
    """
    layers, keys = found["layers"], found["kv_heads"]
    windowed = [str(each) in WINDOWED for each in config.listed("layer_types")] or [
        each == 1 for each in config.listed("hybrid_layer_pattern")
    ]
    heads = [found["heads"]] * layers
    if config.listed("num_attention_heads_per_layer"):
        heads = config.sizes("num_attention_heads_per_layer")
    if len(windowed) != layers or len(heads) != layers:
        raise config.refuse("layer_types", f"as all lists of its layers, one for each of {layers}")
    values = config.size("v_head_dim", 0, least=0)
    near = config.size("swa_num_key_value_heads", 2 * keys if values else keys)
    found = found | {"value_head_size": values, "window": config.size("window", 0, least=0)}
    return _mixed_layers(
        found,
        [
            {
                "heads": heads[layer],
                "kv_heads": near if is_windowed else keys,
                "windowed_layers": int(is_windowed),
                "dense_layers": int(layer < found["dense_layers"]),
                "expert_layers": int(layer >= found["dense_layers"]),
            }
            for layer, is_windowed in enumerate(windowed)
        ],
    )


def _layer_inputs(config: HubConfig, found: Sizes) -> Sizes:
    """Gemma 3n and 4: an embedding table per layer, and the matrices that mix it in.

    These matrices and those of LAuReL are represented as further columns of gated feed-forward blocks, and
    those of AltUp as a separate layer.
    """
    layers, hidden = config.size("layers", most=MOST_LAYERS), found["hidden"]
    width = config.size("hidden_size_per_layer_input", 0, least=0)
    further = width + round(2 * config.size("laurel_rank", 0, least=0) / 3)
    towers = [
        replace(each, model=replace(each.model, ffn_hidden=each.model.ffn_hidden + further))
        for each in found.get("towers", ())
    ]
    if width:
        rows = layers * config.size("vocab_size_per_layer_input", found["vocabulary"])
        table = feed_forward_stack(1, width, ffn_hidden=1)
        towers.append(Tower(model=replace(table, vocabulary=rows, dense_layers=0), tokens=1))
    inputs = config.size("altup_num_inputs", 1, most=MOST_LAYERS)
    if inputs > 1:
        towers.append(matrix_tower(2 * (inputs - 1) * hidden, hidden, 0))
    return found | {"ffn_hidden": found["ffn_hidden"] + further, "towers": tuple(towers)}


def _idle_matrices(config: HubConfig, found: Sizes) -> Sizes:
    """Square matrices of each layer that few tokens pass: the global attention of Longformer."""
    layers, hidden = found["layers"], found["hidden"]
    idle = feed_forward_stack(layers, hidden, ffn_hidden=round(config.family.idle_matrices * hidden / 2))
    return found | {"towers": (Tower(model=idle, tokens=1),)}


def _shared_blocks(config: HubConfig, found: Sizes) -> Sizes:
    """Zamba: transformer layers with shared weights between state-space layers.

    Their input is the embeddings concatenated with the hidden values, and each has its own output matrix.
    """
    kinds, hidden = [str(each) for each in config.listed("layers_block_type")], found["hidden"]
    indices = config.listed("hybrid_layer_ids")
    uses, blocks = kinds.count("hybrid") or len(indices), config.size("num_mem_blocks", 1)
    if not uses and config.stated("attention_every"):  # Zamba 1: the third layer is the first
        uses = 1 + max(0, found["layers"] - 3) // config.size("attention_every")
    if uses < 1 or uses < blocks:
        raise config.refuse("layers_block_type", f"at least {blocks} hybrid layers")
    size, rank = (
        config.size("attention_head_dim", 2 * hidden // found["heads"]),
        config.size("adapter_rank", 0, least=0),
    )
    width = found["ffn_hidden"]
    shared = Transformer(
        layers=uses,
        hidden=2 * hidden,
        heads=found["heads"],
        kv_heads=found["kv_heads"],
        head_size=size,
        output_rank=hidden,
        ffn_hidden=width // 2,
        gated=True,
        vocabulary=1,
        tied_embeddings=True,
        predicted_fraction=0.0,
        repeats=uses / blocks,
    )
    inner = config.size("state_expansion", 2) * hidden
    heads = config.size("state_heads", max(1, inner // config.size("state_head_size", 64)))
    # Each use has a square matrix, and adapters of the feed-forward block's first matrix.
    own = feed_forward_stack(
        uses, hidden, ffn_hidden=max(1, round((hidden + rank * (1 + 2 * width / hidden)) / 2))
    )
    return found | {
        "attention_layers": 0,
        "dense_layers": 0,
        "state_layers": found["layers"],
        "state_heads": heads,
        "state_head_size": max(1, inner // heads),
        "state_size": config.size("state_size", 64),
        "state_groups": config.size("state_groups", 1),
        "towers": (Tower(model=shared, tokens=0), Tower(model=own, tokens=0)),
    }


def _layer_lists(config: HubConfig, found: Sizes) -> Sizes:
    """OpenELM: heads and widths of each layer are in lists; widths are relative to the hidden size."""
    queries, keys = config.sizes("num_query_heads"), config.sizes("num_kv_heads")
    factors, step = config.listed("ffn_multipliers"), config.size("ffn_dim_divisor", 1)
    layers = found["layers"]
    if not (len(queries) == len(keys) == len(factors) == layers) or not all(map(is_factor, factors)):
        raise config.refuse(
            "ffn_multipliers", f"as num_query_heads and num_kv_heads, one for each of {layers} layers"
        )
    return _mixed_layers(
        found,
        [
            {"heads": heads, "kv_heads": shared, "ffn_hidden": _rounded(factor * found["hidden"], step)}
            for heads, shared, factor in zip(queries, keys, factors, strict=True)
        ],
    )


def _rounded(width: float, step: int) -> int:
    """Return the nearest multiple of a step, as OpenELM's make_divisible does."""
    return max(step, int(width + step / 2) // step * step)


def _block_configs(config: HubConfig, found: Sizes) -> Sizes:
    """DeciLM and Nemotron NAS: queries per key and width of each layer; either block may be skipped."""
    blocks = config.listed("block_configs")
    if not blocks:
        keys = config.sizes("num_key_value_heads_per_layer")
        return _mixed_layers(found, [{"kv_heads": each} for each in keys])
    return _mixed_layers(found, [_block_layer(config, found, each) for each in blocks])


def _block_layer(config: HubConfig, found: Sizes, block: object) -> Sizes:
    """Return the sizes of one layer of `block_configs`: skipped, a square matrix, or its own size."""
    attention, dense = (block.get("attention"), block.get("ffn")) if isinstance(block, dict) else (None, None)
    if not isinstance(attention, dict) or not isinstance(dense, dict):
        raise config.refuse("block_configs", "an attention and an ffn table for each layer")
    layer: Sizes = {"attention_layers": 1, "dense_layers": 1}
    square = found["hidden"] // (3 if found["gated"] else 2)
    if attention.get("no_op") or attention.get("replace_with_linear"):
        layer["attention_layers"] = 0
    elif attention.get("n_heads_in_group") is not None:
        layer["kv_heads"] = _shared_keys(config, found["heads"], attention["n_heads_in_group"])
    if dense.get("no_op"):
        layer["dense_layers"] = 0
    elif dense.get("replace_with_linear"):
        layer["ffn_hidden"] = square
    elif not is_factor(dense.get("ffn_mult")):
        raise config.refuse(
            "block_configs", "ffn_mult, a number, for each layer that has a feed-forward block"
        )
    else:
        # Two thirds, because a gated block has three matrices instead of two; rounded up to a multiple of
        # 256.
        layer["ffn_hidden"] = -(-int(2 * dense["ffn_mult"] * found["hidden"] / 3) // 256) * 256
    if attention.get("replace_with_linear"):
        layer["ffn_hidden"] = square + layer["dense_layers"] * layer.get("ffn_hidden", 0)
        layer["dense_layers"] = 1
    return layer


def _shared_keys(config: HubConfig, heads: int, group: object) -> int:
    if not is_whole(group, 1, heads) or heads % group:
        raise config.refuse("block_configs", f"n_heads_in_group that divides {heads} heads")
    return heads // group


_STATE_SIZES: Final = ("state_heads", "state_head_size", "state_size", "state_groups")
# Parts of families, by name.
MIXED_PARTS: Final[Mapping[str, Callable[[HubConfig, Sizes], Sizes]]] = {
    "hybrid": _hybrid,
    # Mamba-2, and gated delta nets, whose value heads, key size and key heads stand in the same places.
    "states": lambda config, found: found | {name: config.size(name) for name in _STATE_SIZES},
    "mamba1": _mamba1,
    "lightning": _lightning,
    # Layers of a state space and nothing else.
    "states_alone": lambda _, found: (
        found
        | {"attention_layers": 0, "dense_layers": 0}
        | {"state_layers": found["layers"], "kv_heads": found["heads"]}
    ),
    # Falcon-H1: attention and a state space side by side in each layer.
    "states_beside": lambda _, found: found | {"state_layers": found["layers"]},
    "recurrent": _recurrent,
    # RWKV until its sixth version: a square matrix gates what the feed-forward block of two returns.
    "receptive": lambda _, found: found | {"ffn_hidden": found["ffn_hidden"] + found["hidden"] // 2},
    "repeated": _repeated,
    "layer_lists": _layer_lists,
    "block_configs": _block_configs,
    "gemma4": _gemma4,
    "two_attentions": _two_attentions,
    "layer_inputs": _layer_inputs,
    "idle_matrices": _idle_matrices,
    "shared_blocks": _shared_blocks,
}
