"""Hugging Face models of audio, time series and images: their tokens, and the layers before the stack."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.spec import is_number
from equipoise.spec.hub_keys import MOST_LAYERS, HubConfig, Sizes
from equipoise.spec.transformer import Tower, Transformer, feed_forward_stack, matrix_tower
from equipoise.spec.workload import LEAST_SIDE, Image

# Audio.


def _whisper(config: HubConfig, found: Sizes) -> Sizes:
    """Whisper: a decoder that attends to an encoder of 30 s of audio; the encoder is a tower.

    The two convolutions before the encoder are counted as its embedding table.
    """
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


# Length of the training samples of wav2vec 2.0, HuBERT and WavLM at 16 kHz: 15.6 s (Baevski et al. 2020,
# section 4.2).
_CROP_SAMPLES: Final = 250_000


def num_frames(config: HubConfig) -> list[int]:
    """Return the number of tokens after each convolution over the waveform."""
    found, left = [], _CROP_SAMPLES
    for kernel, stride in zip(config.sizes("conv_kernel"), config.sizes("conv_stride"), strict=False):
        left = max(1, (left - kernel) // stride + 1)
        found.append(left)
    return found


def _waveform(config: HubConfig, found: Sizes) -> Sizes:
    """wav2vec 2.0: convolutions over the waveform, a projection, and a convolution for positions."""
    tokens, hidden = num_frames(config), found["hidden"]
    widths = config.sizes("conv_dim")
    kernels = config.sizes("conv_kernel")
    layers = zip((1, *widths), widths, kernels, tokens, strict=False)
    towers = [matrix_tower(before * kernel, width, each) for before, width, kernel, each in layers]
    kernel, groups = (
        config.size("num_conv_pos_embeddings", 128),
        config.size("num_conv_pos_embedding_groups", 16),
    )
    towers.append(matrix_tower(widths[-1], hidden, tokens[-1]))
    towers.append(matrix_tower(hidden * kernel // groups, hidden, tokens[-1]))
    return found | {"towers": tuple(towers)}


def _conformer(config: HubConfig, found: Sizes) -> Sizes:
    """Conformers: layers with two feed-forward blocks, and a depthwise convolution between matrices.

    The three matrices of the convolution, and the matrix of relative positions, are counted as columns of the
    feed-forward blocks.
    """
    hidden, kernel = found["hidden"], config.size("conv_depthwise_kernel_size", 31)
    squares = 3 + (config.keys.get("position_embeddings_type") == "relative")
    towers = found.get("towers", ())
    if config.keys.get("feature_projection_input_dim") is not None:
        towers += (matrix_tower(config.size("feature_projection_input_dim"), hidden, 0),)
        if config.flag("add_adapter", default=False):
            # An adapter layer on half the frames, after two convolutions with a kernel of three frames.
            count, tokens = config.size("num_adapter_layers", 1), config.family.sequence_tokens // 2
            towers += (matrix_tower(24 * count * hidden, hidden, tokens),)
    return found | {
        "ffn_hidden": 2 * found["ffn_hidden"] + (squares * hidden + kernel) // 2,
        "towers": towers,
    }


# Time series.


def _series(config: HubConfig, found: Sizes) -> Sizes:
    """TimesFM: residual blocks of two matrices before and after the stack, and one for quantiles."""
    hidden, values = found["hidden"], 1 + (len(config.listed("quantiles")) or _USUAL_QUANTILES)
    patch, horizon = config.size("patch_length", 32), config.size("horizon_length", 128)
    columns = (2 * 2 * patch + hidden) + (hidden + 2 * horizon * values)
    if config.flag("use_continuous_quantile_head", default=False):
        columns += hidden + 2 * config.size("output_quantile_len", 1024) * values
    return found | {"towers": (matrix_tower(columns, hidden, 0),)}


_USUAL_QUANTILES: Final = 9


def num_series_tokens(config: HubConfig) -> int:
    """Return the tokens of the longest series that a model supports."""
    return max(1, config.size("context_length", 512) // config.size("patch_length", 32))


# Images.


def _image(config: HubConfig, found: Sizes) -> Sizes:
    """A vision transformer: matrices embed patches and predict classes; there is no vocabulary."""
    tokens = num_patches(config)
    pixels = config.size("num_channels", 3) * config.size("patch_size", 16) ** 2
    has_positions = config.family.position_tables and config.keys.get("rope_theta") is None
    return found | {
        "position_embeddings": tokens if has_positions else 0,
        "vocabulary": pixels + _classes(config),
        "tied_embeddings": True,
        "predicted_fraction": 1 / tokens,
    }


def _pooled(config: HubConfig, found: Sizes) -> Sizes:
    """SigLIP: a final layer pools by the attention of one token."""
    if not config.flag("vision_use_head", default=True):
        return found
    last = {"layers": 1, "vocabulary": 1, "position_embeddings": 0, "predicted_fraction": 0.0}
    return found | {"towers": (Tower(model=Transformer(**found | last), tokens=1),)}


def _masked(config: HubConfig, found: Sizes) -> Sizes:
    """Masked autoencoders: the stack processes the unmasked patches, and a narrower decoder all patches."""
    hidden, tokens = config.size("decoder_hidden_size", 512), _all_patches(config)
    heads = config.size("decoder_num_attention_heads", 16)
    decoder = Transformer(
        layers=config.size("decoder_num_hidden_layers", 8, most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=max(1, hidden // heads),
        ffn_hidden=config.size("decoder_intermediate_size", 4 * hidden),
        vocabulary=config.size("num_channels", 3) * config.size("patch_size", 16) ** 2,
        tied_embeddings=True,
        causal=False,
        position_embeddings=tokens,
    )
    between = matrix_tower(found["hidden"], hidden, num_patches(config))
    return found | {"position_embeddings": tokens, "towers": (between, Tower(model=decoder, tokens=tokens))}


def _image_windows(config: HubConfig, found: Sizes) -> Sizes:
    """SAM's encoder: layers with attention in square windows, except the listed ones."""
    whole = len(config.listed("global_attn_indexes"))
    if whole > found["layers"]:
        raise config.refuse("global_attn_indexes", f"at most its {found['layers']} layers")
    window = config.size("window_size", 14) ** 2
    return found | {"window": window, "windowed_layers": found["layers"] - whole}


def prompted_towers(config: HubConfig, hidden: int, tokens: int) -> tuple[Tower, ...]:
    """Return SAM's layers after its encoder: convolutions that reduce its width, and the mask decoder.

    The decoder has 30 square matrices, and two feed-forward blocks of width 2,048. It takes less than 1 % of
    the FLOP, and is counted as if it processed one token.
    """
    width = config.size("output_channels", 256)
    return (
        matrix_tower(hidden + 9 * width, width, tokens),
        matrix_tower(30 * width + 4 * _MASKS_FFN, width, 1),
    )


_MASKS_FFN: Final = 2048


def _classes(config: HubConfig) -> int:
    """Return the number of classes named in the file."""
    names = config.keys.get("id2label")
    return len(names) if isinstance(names, dict) else config.size("num_labels", 0, least=0)


def num_patches(config: HubConfig) -> int:
    """Return the number of patches of an image, with class token and registers."""
    if config.stated("num_patches") is not None:
        return config.size("num_patches")
    if "pyramid" in config.family.parts:
        return _stages(config)[-1].tokens
    tokens = _all_patches(config)
    if "masked" in config.family.parts:
        return 1 + round((tokens - 1) * (1 - _mask_ratio(config)))
    return tokens


def patched_image(config: HubConfig) -> Image | None:
    """Return the image size of a stack that processes only complete images; None otherwise."""
    if set(config.family.parts) != {"image"} or config.stated("num_patches") is not None:
        return None
    side, patch = config.size("image_size", 224), config.size("patch_size", 16)
    if side < LEAST_SIDE:
        return None
    others = _all_patches(config) - (side // patch) ** 2
    return Image(width=side, height=side, patch=patch, other_tokens=others)


def _mask_ratio(config: HubConfig) -> float:
    """Return the fraction of patches that a masked autoencoder omits."""
    ratio = config.keys.get("mask_ratio", _USUAL_MASK_RATIO)
    if not is_number(ratio) or not 0 <= ratio < 1:
        raise config.refuse("mask_ratio", "a number from 0 to below 1")
    return ratio


_USUAL_MASK_RATIO: Final = 0.75


def _all_patches(config: HubConfig) -> int:
    """Return the number of patches of an image, with class token and registers, before masking."""
    side = config.size("image_size", 224) // config.size("patch_size", 16)
    if side < 1:
        raise config.refuse("image_size", f"at least patch_size={config.keys.get('patch_size', 16)}")
    return side * side + 1 + config.size("num_register_tokens", 0, least=0)


class _Stage(Struct, frozen=True, kw_only=True):
    """A stage of an image pyramid: its layers, channels and tokens."""

    layers: int
    channels: int
    tokens: int


def _stages(config: HubConfig) -> list[_Stage]:
    """Return the stages of an image pyramid, each with half the height and width of the one before."""
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
# Weights per channel of ConvNeXt's depthwise convolution of 7 x 7.
_DEPTHWISE: Final = 49


def _pyramid(config: HubConfig, _found: Sizes) -> Sizes:
    """Swin and ConvNeXt: stages with fewer tokens and more channels, each after a matrix that merges patches.

    The last stage is the stack itself; the others and the matrices are towers.
    """
    stages, towers, before = _stages(config), [], config.size("num_channels", 3)
    merged = config.size("patch_size", 4) ** 2
    models = [_stage(config, index, stage) for index, stage in enumerate(stages)]
    for stage, model in zip(stages, models, strict=True):
        towers.append(matrix_tower(before * merged, stage.channels, stage.tokens))
        towers.append(Tower(model=model, tokens=stage.tokens))
        before, merged = stage.channels, 4
    last = towers.pop().model
    return {name: getattr(last, name) for name in Transformer.__struct_fields__} | {
        "vocabulary": max(1, _classes(config)),
        "predicted_fraction": 1 / stages[-1].tokens,
        "towers": tuple(towers),
    }


def _stage(config: HubConfig, index: int, stage: _Stage) -> Transformer:
    """Return the layers of one stage, with windowed attention or depthwise convolutions."""
    heads = config.sizes("num_heads") if config.keys.get("num_heads") is not None else []
    if not heads:
        return feed_forward_stack(
            stage.layers, stage.channels, ffn_hidden=4 * stage.channels + round(_DEPTHWISE / 2)
        )
    if len(heads) <= index or stage.channels % heads[index]:
        raise config.refuse("num_heads", "a number for each of depths, which divides its width")
    return replace(
        feed_forward_stack(stage.layers, stage.channels, ffn_hidden=4 * stage.channels),
        heads=heads[index],
        kv_heads=heads[index],
        head_size=stage.channels // heads[index],
        attention_layers=stage.layers,
        window=config.size("window_size", 7) ** 2,
        windowed_layers=stage.layers,
    )


# Parts of families, by name.
MEDIA_PARTS: Final[Mapping[str, Callable[[HubConfig, Sizes], Sizes]]] = {
    "whisper": _whisper,
    "waveform": _waveform,
    "conformer": _conformer,
    "series": _series,
    "image": _image,
    "pooled": _pooled,
    "masked": _masked,
    "image_windows": _image_windows,
    "pyramid": _pyramid,
}
