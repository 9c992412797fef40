"""A model's config.json, as the Hugging Face hub has it, as a workload. No network, and nothing of it is run.

Families that are mapped: FAMILIES. Meanings of keys: the configuration classes of `transformers`.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from equipoise.errors import DataError, SpecError
from equipoise.files import read_input
from equipoise.spec.facts import shown
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Area, Workload
from equipoise.units import format_si

_MOST_BYTES: Final = 1_000_000
# Beyond any model there is: a larger size is an error of the file.
_MOST_SIZE: Final = 10**9
_MOST_LAYERS: Final = 10_000
USUAL_SEQUENCE_TOKENS: Final = 4096
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
# Keys of sizes that families name differently; the first that a file has holds.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "ffn_hidden": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "head_size": ("head_dim", "d_kv", "qk_nope_head_dim"),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token"),
}


class HubModel(Struct, frozen=True, kw_only=True):
    """The workload of a config.json. left_out: what the file has besides that no part of it stands for."""

    workload: Workload
    left_out: tuple[str, ...] = ()


class _Config(Struct, frozen=True, kw_only=True):
    """The keys of a file, or of the part of it that describes the language model."""

    path: Path
    keys: Mapping[str, Any]

    def refuse(self, key: str, expected: str) -> SpecError:
        return SpecError(f"{self.path}: {key}={shown(self.keys.get(key))}; expected {expected}")

    def stated(self, name: str) -> str | None:
        """The key under which a size is stated; None where it is not, or null."""
        return next((each for each in _NAMES.get(name, (name,)) if self.keys.get(each) is not None), None)

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = _MOST_SIZE) -> int:
        """A whole number. Raises SpecError where it is none, or missing without a default."""
        key = self.stated(name)
        if key is None:
            if default is None:
                known = " or ".join(_NAMES.get(name, (name,)))
                raise SpecError(f"{self.path}: {known} is missing; expected a whole number from {least} up")
            return default
        value = self.keys[key]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def listed(self, key: str) -> list[Any]:
        value = self.keys.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > _MOST_LAYERS:
            raise self.refuse(key, f"a list of at most {_MOST_LAYERS:,} layers")
        return value


Sizes = dict[str, Any]


class Family(Struct, frozen=True, kw_only=True):
    """How configurations of some `model_type`s are read.

    gated: three matrices a feed-forward block, not two. tied: whether one table embeds tokens and makes
    logits, where the file does not state it. positions: learned position embeddings. sizes: further sizes.
    defaults: of keys that published files leave out.
    window_every: of so many layers one is without window, where `layer_types` does not state it; 0: all have
    the window, None: none has.
    """

    types: tuple[str, ...]
    area: Area = "language"
    gated: bool = True
    tied: bool = False
    positions: bool = False
    causal: bool = True
    window_every: int | None = None
    defaults: Mapping[str, int] = field(default_factory=dict)
    sizes: Callable[[_Config, Sizes], Sizes] | None = None


def read_config(path: Path) -> HubModel:
    """The model of a config.json. Raises SpecError in one sentence where it is none, or is not mapped."""
    outer = _Config(path=path, keys=_read(path))
    config, left_out = outer, []
    for part in ("text_config", "llm_config", "thinker_config"):
        if isinstance(inner := outer.keys.get(part), dict):
            config = _Config(path=path, keys={"model_type": outer.keys.get("model_type"), **inner})
            left_out = sorted(key for key in outer.keys if key.endswith("_config") and key != part)
            break
    kind = config.keys.get("model_type")
    family = next((each for each in FAMILIES if kind in each.types), None)
    if family is None:
        known = ", ".join(sorted(name for each in FAMILIES for name in each.types))
        raise SpecError(
            f"{path}: model_type={shown(kind)} is not mapped; known: {known}; any other model is counted as "
            "MODULE:FUNCTION"
        )
    config = _Config(path=path, keys={**family.defaults, **config.keys})
    sizes = _sizes(config, family)
    try:
        model = Transformer(**sizes)
    except SpecError as err:
        raise SpecError(f"{path}: {err}") from err
    name = outer.keys.get("_name_or_path")
    title = f"{kind} of {format_si(float(model.params))} parameters"
    if isinstance(name, str) and 0 < len(name) <= _MOST_NAME and name.isprintable():
        title = name
    return HubModel(
        workload=Workload(
            slug=re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "config",
            title=title,
            area=family.area,
            source=f"{path.name} (model_type {kind})",
            sample="image" if family.area == "vision" else "sequence",
            sequence_tokens=_sequence(config, family, model),
            params=float(model.params),
            transformer=model,
        ),
        left_out=(*left_out, *_unmapped(config, family)),
    )


_MOST_NAME: Final = 100


def _read(path: Path) -> dict[str, Any]:
    """The document. Raises SpecError for what is no small JSON object."""
    try:
        content = read_input(path, _MOST_BYTES, expected="the config.json of a model")
    except DataError as err:
        raise SpecError(str(err)) from err
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise SpecError(f"{path}: not JSON: {str(err)[:100]}; expected the config.json of a model") from err
    if not isinstance(found, dict) or "model_type" not in found:
        raise SpecError(f"{path}: no model_type; expected the config.json of a model")
    return found


def _sizes(config: _Config, family: Family) -> Sizes:
    """The sizes of a transformer, as its record names them."""
    hidden, heads = config.size("hidden"), config.size("heads")
    kinds = config.listed("layers_block_type") or config.listed("layer_types")
    layers = config.size("layers", len(kinds) or None, most=_MOST_LAYERS)
    if hidden % heads and config.stated("head_size") is None:
        raise config.refuse("head_dim", f"this size, since hidden={hidden} is no multiple of heads={heads}")
    found: Sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.size("num_key_value_heads", heads),
        "head_size": config.size("head_size", max(1, hidden // heads)),
        "ffn_hidden": config.size("ffn_hidden", 4 * hidden),
        "vocabulary": 1 if family.area == "vision" else config.size("vocab_size"),
        "gated": family.gated,
        "causal": family.causal,
        "tied_embeddings": config.flag("tie_word_embeddings", default=family.tied),
        "position_embeddings": config.size("positions") if family.positions else 0,
        **_windows(config, family, layers),
    }
    return found if family.sizes is None else family.sizes(config, found)


def _windows(config: _Config, family: Family, layers: int) -> Sizes:
    """The layers that look back a window only."""
    kinds = config.listed("layer_types")
    unknown = {str(each)[:40] for each in kinds} - _WINDOWED - {"full_attention"}
    if unknown and family.sizes not in {_state_space, _delta_net}:
        raise SpecError(
            f"{config.path}: layer_types has {', '.join(sorted(unknown))}, which is not mapped; "
            "count the model as MODULE:FUNCTION"
        )
    window = config.size("attention_chunk_size", config.size("sliding_window", 0, least=0), least=0)
    if not window or not config.flag("use_sliding_window", default=True) or family.window_every is None:
        return {}
    every = config.size("sliding_window_pattern", family.window_every, least=0)
    windowed = (
        sum(each in _WINDOWED for each in kinds) if kinds else layers - (layers // every if every else 0)
    )
    return {"window": window, "windowed_layers": windowed}


def _sequence(config: _Config, family: Family, model: Transformer) -> int:
    """The tokens of a sample unless the question states them."""
    if family.area == "vision":
        return _patches(config)
    most = config.size("positions", USUAL_SEQUENCE_TOKENS)
    return min(USUAL_SEQUENCE_TOKENS, most, model.position_embeddings or most)


def _unmapped(config: _Config, family: Family) -> tuple[str, ...]:
    """Keys of parts that the sizes do not stand for."""
    parts = ("num_nextn_predict_layers",) if family.sizes is not _latent else ()
    return tuple(each for each in ("quantization_config", *parts) if config.keys.get(each))


def _routed(config: _Config, found: Sizes) -> Sizes:
    """A mixture of experts with as many layers of experts as the file states."""
    expert = config.size("moe_intermediate_size", found["ffn_hidden"])
    shared = config.size("shared_expert_intermediate_size", 0, least=0)
    shared += expert * config.size("n_shared_experts", 0, least=0)
    return found | {
        "experts": config.size("experts"),
        "top_k": config.size("top_k"),
        "expert_ffn_hidden": expert,
        "shared_expert_ffn_hidden": shared,
        "dense_layers": _dense_layers(config, found["layers"]),
    }


def _dense_layers(config: _Config, layers: int) -> int:
    """Layers of a mixture of experts whose feed-forward block is dense."""
    first = config.size("first_k_dense_replace", 0, least=0)
    every = config.size("moe_layer_freq", config.size("decoder_sparse_step", 1))
    only = config.listed("mlp_only_layers")
    sparse = [each for each in range(first, layers) if (each + (every > 1)) % every == 0 and each not in only]
    return layers - len(sparse)


def _latent(config: _Config, found: Sizes) -> Sizes:
    """DeepSeek: latent attention over a mixture of experts."""
    groups = config.size("n_group", 1)
    return _routed(config, found) | {
        "kv_heads": found["heads"],
        "head_size": config.size("qk_nope_head_dim"),
        "query_rank": config.size("q_lora_rank", 0, least=0),
        "kv_rank": config.size("kv_lora_rank"),
        "rope_head_size": config.size("qk_rope_head_dim"),
        "value_head_size": config.size("v_head_dim"),
        "expert_groups": groups if groups > 1 else 0,
        "top_groups": config.size("topk_group", 1) if groups > 1 else 0,
        "prediction_layers": config.size("num_nextn_predict_layers", 0, least=0, most=100),
    }


def _predicting(config: _Config, found: Sizes) -> Sizes:
    """GLM-4.5: a mixture of experts that also predicts later tokens."""
    further = config.size("num_nextn_predict_layers", 0, least=0, most=100)
    return _routed(config, found) | {"prediction_layers": further}


def _llama4(config: _Config, found: Sizes) -> Sizes:
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


def _state_space(config: _Config, found: Sizes) -> Sizes:
    """Nemotron-H: layers of one block each, by a letter or a word a layer."""
    pattern = config.keys.get("hybrid_override_pattern")
    words = {
        "linear_attention": "M",
        "mamba": "M",
        "full_attention": "*",
        "attention": "*",
        "mlp": "-",
        "moe": "E",
    }
    kinds = (
        list(pattern)
        if isinstance(pattern, str)
        else [
            words.get(str(each), "?")
            for each in config.listed("layers_block_type") or config.listed("layer_types")
        ]
    )
    if not kinds or len(kinds) > _MOST_LAYERS or set(kinds) - set(words.values()):
        raise config.refuse("hybrid_override_pattern", "a letter of M, *, - and E for each layer")
    count = {letter: kinds.count(letter) for letter in set(words.values())}
    routed: Sizes = {}
    if count["E"]:
        routed = {
            "experts": config.size("experts"),
            "top_k": config.size("top_k"),
            "expert_ffn_hidden": config.size("moe_intermediate_size"),
            "shared_expert_ffn_hidden": config.size("moe_shared_expert_intermediate_size", 0, least=0)
            * config.size("n_shared_experts", 1, least=0),
            "expert_latent": config.size("moe_latent_size", 0, least=0),
            "expert_layers": count["E"],
        }
    return (
        found
        | routed
        | {
            "layers": len(kinds),
            "attention_layers": count["*"],
            "dense_layers": count["-"],
            "state_layers": count["M"],
            "state_heads": config.size("mamba_num_heads"),
            "state_head_size": config.size("mamba_head_dim"),
            "state_size": config.size("ssm_state_size"),
            "state_groups": config.size("n_groups"),
        }
    )


def _delta_net(config: _Config, found: Sizes) -> Sizes:
    """Qwen3-Next and Qwen3.5: gated delta nets, and a gated attention block in each fourth layer."""
    layers, kinds = found["layers"], config.listed("layer_types")
    every = config.size("full_attention_interval", 4)
    linear = kinds.count("linear_attention") if kinds else layers - layers // every
    routed = _routed(config, found) if config.stated("experts") else {}
    return (
        found
        | routed
        | {
            "gated_output": True,
            "attention_layers": layers - linear,
            "state_layers": linear,
            "state_heads": config.size("linear_num_value_heads"),
            "state_head_size": config.size("linear_value_head_dim"),
            "state_size": config.size("linear_key_head_dim"),
            "state_groups": config.size("linear_num_key_heads"),
        }
    )


def _two_stacks(config: _Config, found: Sizes) -> Sizes:
    """T5: an encoder, and a decoder that attends to it too."""
    encoder = found["layers"]
    decoder = config.size("num_decoder_layers", encoder, most=_MOST_LAYERS)
    act = config.keys.get("feed_forward_proj")
    return found | {
        "layers": encoder + decoder,
        "attention_layers": encoder + 2 * decoder,
        "dense_layers": encoder + decoder,
        "gated": isinstance(act, str) and act.startswith("gated"),
    }


def _encoder(_config: _Config, found: Sizes) -> Sizes:
    """BERT and its kin: logits of the masked tokens alone."""
    return found | {"predicted_fraction": 0.15}


def _vision(config: _Config, found: Sizes) -> Sizes:
    """A vision transformer: no vocabulary; a matrix embeds patches, and the head is small."""
    tokens = _patches(config)
    pixels = config.size("num_channels", 3) * config.size("patch_size", 16) ** 2
    return found | {
        "position_embeddings": tokens,
        "vocabulary": pixels,
        "tied_embeddings": True,
        "predicted_fraction": 1 / tokens,
    }


def _patches(config: _Config) -> int:
    """Patches of an image, and the class token."""
    side = config.size("image_size", 224) // config.size("patch_size", 16)
    if side < 1:
        raise config.refuse("image_size", f"at least patch_size={config.keys.get('patch_size', 16)}")
    return side * side + 1


FAMILIES: Final = (
    Family(
        types=(
            *("llama", "qwen2", "qwen3", "olmo", "olmo2", "glm", "glm4", "granite", "seed_oss", "stablelm"),
            *("internlm3", "helium", "hunyuan_v1_dense"),
        )
    ),
    Family(types=("mistral", "ministral", "mistral3", "phi3"), window_every=0),
    Family(types=("olmo3",), window_every=4),
    Family(types=("gemma", "cohere", "smollm3"), tied=True),
    Family(types=("gemma2",), tied=True, window_every=2),
    Family(
        types=("gemma3", "gemma3_text"),
        tied=True,
        window_every=6,
        # Published files of Gemma 3 leave these out: `Gemma3TextConfig`.
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262_208,
            "sliding_window": 4096,
        },
    ),
    Family(types=("cohere2",), tied=True, window_every=4),
    Family(types=("gpt_neox", "gptj", "phi", "nemotron"), gated=False),
    Family(types=("starcoder2", "bloom"), gated=False, tied=True),
    Family(types=("gpt2", "opt"), gated=False, tied=True, positions=True),
    Family(types=("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe"), sizes=_routed),
    Family(types=("gpt_oss",), window_every=2, sizes=_routed),
    Family(types=("glm4_moe",), sizes=_predicting),
    Family(types=("deepseek_v2", "deepseek_v3", "kimi_k2"), sizes=_latent),
    Family(types=("llama4", "llama4_text"), window_every=4, sizes=_llama4),
    Family(types=("nemotron_h",), gated=False, sizes=_state_space),
    Family(
        types=("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), sizes=_delta_net
    ),
    Family(
        types=("bert", "roberta", "xlm-roberta", "camembert", "distilbert"),
        gated=False,
        tied=True,
        positions=True,
        causal=False,
        sizes=_encoder,
    ),
    Family(types=("t5", "mt5", "umt5"), tied=True, causal=False, sizes=_two_stacks),
    Family(types=("vit", "deit"), area="vision", gated=False, tied=True, causal=False, sizes=_vision),
)
