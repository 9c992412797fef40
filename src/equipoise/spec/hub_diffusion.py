"""Diffusion models of the Hugging Face hub: their denoiser, a transformer or U-Net.

Encoders of texts and images, which only run forward, are defined by the family (model_types.toml).
"""

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.spec import is_number
from equipoise.spec.hub_keys import MOST_LAYERS, Denoiser, HubConfig, Sizes, is_whole
from equipoise.spec.transformer import Tower, Transformer, feed_forward_stack, matrix_tower
from equipoise.spec.workload import LEAST_SIDE, Image, Workload

_MOST_SIDE: Final = 100_000
_MOST_PATCH: Final = 64


class Latents(Struct, frozen=True, kw_only=True):
    """The latents of a sample: columns, rows and frames, and the pixels that they represent."""

    width: int
    height: int
    frames: int
    pixels_each: int
    pixel_frames: int

    @property
    def num_pixels(self) -> int:
        """Number of pixels of all frames of a sample."""
        return self.width * self.height * self.pixels_each**2 * self.pixel_frames

    def image(self, *, patch: int | None, frames: int = 1, other_tokens: int = 0) -> Image | None:
        """Return the image, whose size a question may override; None if it is too small to train on.

        patch: side of a token in latents; None without tokens. frames: tokens in time.
        """
        width, height = self.width * self.pixels_each, self.height * self.pixels_each
        if min(width, height) < LEAST_SIDE:
            return None
        side = None if patch is None else patch * self.pixels_each
        return Image(width=width, height=height, patch=side, frames=frames, other_tokens=other_tokens)

    @property
    def words(self) -> str:
        """Description of a sample."""
        size = f"{self.width * self.pixels_each} x {self.height * self.pixels_each} pixels"
        return f"{self.pixel_frames} frames of {size}" if self.pixel_frames > 1 else f"images of {size}"


def latents(config: HubConfig) -> Latents:
    """Return the latents of a sample as stated in the file, or of the family's default resolution."""
    about = config.family.denoiser
    assert about is not None
    channels = str(config.keys.get("in_channels"))
    each = about.latent_pixels_by_channels.get(channels, about.latent_pixels)
    side = config.size("sample_size", 0, least=0, most=_MOST_SIDE)
    frames = config.size("sample_frames", about.frames, most=_MOST_SIDE)
    width, height = about.pixels
    return Latents(
        width=config.size("sample_width", side or max(1, width // each), most=_MOST_SIDE),
        height=config.size("sample_height", side or max(1, height // each), most=_MOST_SIDE),
        frames=(frames - 1) // about.latent_frames + 1,
        pixels_each=each,
        pixel_frames=frames,
    )


def with_frozen(workload: Workload, config: HubConfig) -> Workload:
    """Return the workload of a model with its forward-only parts."""
    about, forward_flop = config.family.denoiser, workload.train_flop_per_sample
    if not config.frozen or about is None or forward_flop is None:
        return workload
    pixels, image = latents(config).num_pixels, workload.image
    flop = {each: each.flop(text_tokens=about.text_tokens, num_pixels=pixels) for each in config.frozen}
    of_texts = sum(amount for each, amount in flop.items() if each.flop_per_pixel is None)
    if image is not None:
        image = replace(image, text_share=_PASSES * of_texts / forward_flop)
    return replace(
        workload,
        image=image,
        frozen_share=_PASSES * sum(flop.values()) / forward_flop,
        frozen_params=sum(each.params for each in config.frozen),
    )


# A training step costs as much as three forward passes.
_PASSES: Final = 3


# Transformers.


def _patch(config: HubConfig) -> tuple[int, int]:
    """Return the frames and the columns (or rows) of latents per token."""
    key = next((each for each in ("patch_size", "all_patch_size") if config.keys.get(each) is not None), "")
    value = config.keys.get(key, 1)
    if isinstance(value, list) and key == "patch_size" and len(value) > 1:
        frames, side = value[0], value[-1]
    else:
        frames, side = (
            config.keys.get("patch_size_t") or 1,
            value[0] if isinstance(value, list) and value else value,
        )
    if not all(is_whole(each, 1, _MOST_PATCH) for each in (frames, side)):
        raise config.refuse(key or "patch_size", "one whole number, or one for frames and two for the sides")
    return frames, side


def denoiser_tokens(config: HubConfig) -> int:
    """Return the tokens per sample in the attention of a diffusion transformer: patches, and joint text."""
    about, (frames, side) = config.family.denoiser, _patch(config)
    assert about is not None
    of = latents(config)
    found = math.ceil(of.width / side) * math.ceil(of.height / side) * math.ceil(of.frames / frames)
    return found + (about.text_tokens if about.joins_text else 0)


def denoiser_image(config: HubConfig) -> Image | None:
    """Return the images that a diffusion transformer is trained on."""
    about, (frames, side) = config.family.denoiser, _patch(config)
    assert about is not None
    of, texts = latents(config), about.text_tokens if about.joins_text else 0
    return of.image(patch=side, frames=math.ceil(of.frames / frames), other_tokens=texts)


def denoiser_sizes(config: HubConfig, _found: Sizes) -> Sizes:
    """Return the sizes of a diffusion transformer as one stack over the tokens of a sample.

    If text has separate weights in a layer, a token passes only one of the two sets. Those of text are a
    tower of one token, and so are the matrices that compute scales and shifts from a sample's noise level.
    """
    family, about = config.family, config.family.denoiser
    assert about is not None
    heads, head_size = config.size("heads"), config.size("head_size", 0, least=0)
    hidden = config.size("hidden", heads * head_size or None)
    head_size = head_size or max(1, hidden // heads)
    ratio = config.keys.get("mlp_ratio", family.ffn_ratio)
    if not is_number(ratio) or not 0 < ratio <= MOST_LAYERS:
        raise config.refuse("mlp_ratio", "a number")
    double, single = config.num_layers(about.double), config.num_layers(about.single)
    refiners = config.num_layers(about.image_refiners)
    if double + single < 1:
        raise config.refuse(about.double or about.single or "num_layers", "at least one layer")
    frames, side = _patch(config)
    channels = config.size("in_channels", 4)
    layer = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.size("kv_heads", heads),
        "head_size": head_size,
        "ffn_hidden": config.size("ffn_hidden", max(1, int(ratio * hidden))),
        "gated": family.gated,
        "causal": False,
        "tied_embeddings": True,
    }
    layers = double + single + refiners
    seen = 0 if about.joins_text else about.text_tokens
    seen += about.image_tokens if config.image_width else 0
    return layer | {
        "layers": layers,
        "vocabulary": 2 * channels * side * side * frames,
        # Linear attention takes as many FLOP as attention over head_size keys.
        "window": head_size if about.is_linear else 0,
        "windowed_layers": layers if about.is_linear else 0,
        "cross_layers": layers if seen else 0,
        "cross_tokens": seen,
        "towers": tuple(_beside(config, about, layer, (double, single + refiners))),
    }


def _beside(config: HubConfig, about: Denoiser, layer: Sizes, layers: tuple[int, int]) -> Iterator[Tower]:
    """Yield the further stacks of a diffusion transformer: weights of text, and of noise levels."""
    hidden, (double, single) = layer["hidden"], layers
    width = config.size(about.modulation_width, hidden) if about.modulation_width else hidden
    ratio = layer["ffn_hidden"] / hidden
    if double and about.joins_text:
        narrow = config.size(about.text_stream, hidden) if about.text_stream else hidden
        yield Tower(
            model=_stack(layer | {"hidden": narrow, "ffn_hidden": max(1, int(ratio * narrow))}, double),
            tokens=1,
        )
    refiners = config.num_layers(about.text_refiners)
    if refiners:
        yield Tower(model=_stack(layer, refiners), tokens=about.text_tokens)
    for count, factor in ((double, about.modulation), (single, about.single_modulation)):
        if count and factor:
            ffn_hidden = max(1, round(factor * width / 2))
            yield Tower(model=feed_forward_stack(count, hidden, ffn_hidden=ffn_hidden), tokens=1)
    further = len(config.listed("dual_attention_layers"))
    if further:  # SD3.5 medium: images have a second attention, among themselves
        only = _stack(layer, further)
        yield Tower(model=replace(only, attention_layers=further, dense_layers=0), tokens=0)
        yield Tower(model=feed_forward_stack(further, hidden, ffn_hidden=round(1.5 * hidden)), tokens=1)
    if config.image_width:  # key and value projections of image tokens in each layer
        yield matrix_tower(2 * config.image_width * (double + single), hidden, about.image_tokens)
    yield matrix_tower(round(about.shared_modulation * hidden), hidden, 1)
    stated = next((key for key in about.text_width if config.keys.get(key) is not None), None)
    if stated is not None:
        yield matrix_tower(config.size(stated), hidden, about.text_tokens)


def _stack(layer: Sizes, layers: int) -> Transformer:
    """Return a stack of layers without embedding tables."""
    return Transformer(**layer, layers=layers, vocabulary=1, predicted_fraction=0.0)


# U-Nets.

_CONVOLUTION: Final = 9  # weights of a kernel of 3 by 3
_MOST_LEVELS: Final = 8
_BLOCKS: Final = frozenset({"CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"})


class UNet:
    """Figures per sample of a U-Net with attention to text, summed block by block.

    Assumes that normalisations, activations and products save their inputs: two values per channel before a
    convolution, and in a transformer block those listed in `attend`.
    """

    def __init__(self, config: HubConfig) -> None:
        """Sum the blocks of the configured network. Raises SpecError for an unsupported configuration."""
        self.params = self.forward_flop = self.kept_values = self.widest_values = self.layers = 0
        self.squared_flop = 0  # of forward_flop, scores of pixels by pixels
        self.adapter_width = self.linear_adapter_width = 0
        self.text_tokens = config.family.denoiser.text_tokens if config.family.denoiser else 0
        self.text_width = config.size("cross_attention_dim", 1280)
        encoded = config.size("encoder_hid_dim", 0, least=0)
        of = self.latents = latents(config)
        widths = config.sizes("block_out_channels") or [320, 640, 1280, 1280]
        depths = _by_level(config, "transformer_layers_per_block", 1, len(widths))
        resnets = _by_level(config, "layers_per_block", 2, len(widths))
        places = [
            max(1, of.width // 2**level) * max(1, of.height // 2**level) for level in range(len(widths))
        ]
        if encoded:  # the encoders' text embeddings are projected to the width of the layers
            self.product(encoded, self.text_width, self.text_tokens)
        self.times = 4 * widths[0]
        for columns in (
            widths[0],
            self.times,
            config.size("projection_class_embeddings_input_dim", 0, least=0),
        ):
            self.product(columns, self.times, 1)
        self.convolve(config.size("in_channels", 4), widths[0], places[0])
        down = _attends(config, "down_block_types", len(widths))
        up = _attends(config, "up_block_types", len(widths))[::-1]
        skips = [widths[0]]
        channels = widths[0]
        for level, width in enumerate(widths):
            for _ in range(resnets[level]):
                self.block(channels, width, places[level], depths[level] if down[level] else 0)
                channels = width
                skips.append(width)
            if level + 1 < len(widths):
                self.convolve(width, width, places[level + 1])
                skips.append(width)
        self.block(channels, channels, places[-1], depths[-1])
        self.block(channels, channels, places[-1], 0)
        for level in reversed(range(len(widths))):
            for _ in range(resnets[level] + 1):
                self.block(
                    channels + skips.pop(), widths[level], places[level], depths[level] if up[level] else 0
                )
                channels = widths[level]
            if level:
                self.convolve(channels, channels, places[level - 1])
        self.convolve(channels, config.size("out_channels", 4), places[0])

    @property
    def image(self) -> Image | None:
        """Return the images that it is trained on."""
        found = self.latents.image(patch=None)
        return found and replace(found, squared_share=self.squared_flop / self.forward_flop)

    def product(self, columns: int, channels: int, places: int) -> None:
        """Add a matrix or convolution with `columns` inputs per channel, applied at `places` positions."""
        self.params += columns * channels
        self.forward_flop += 2 * columns * channels * places
        self.layers += columns > 0

    def convolve(self, before: int, channels: int, places: int) -> None:
        """Add a 3 x 3 convolution."""
        self.product(_CONVOLUTION * before, channels, places)
        self.widest_values = max(self.widest_values, channels * places)

    def block(self, before: int, channels: int, places: int, depth: int) -> None:
        """Add a residual block of two convolutions, shifted by the noise level, and `depth` more layers."""
        self.convolve(before, channels, places)
        self.convolve(channels, channels, places)
        self.product(self.times, channels, 1)
        if before != channels:
            self.product(before, channels, places)
        self.kept_values += 3 * (before + channels) * places
        if depth:
            self.product(channels, channels, places)
            self.product(channels, channels, places)
            self.kept_values += 2 * channels * places
            for _ in range(depth):
                self.attend(channels, places)

    def attend(self, channels: int, places: int) -> None:
        """Add a layer: self-attention, attention to text, and a gated feed-forward block four times as wide.

        Saved: inputs of three norms and of their products; queries, keys, values and results of attention;
        and both halves of the block, the activation of one, and their product.
        """
        for keys, width in ((places, channels), (self.text_tokens, self.text_width)):
            self.product(channels, 2 * channels, places)
            self.product(width, 2 * channels, keys)
            self.layers += 2  # queries, keys, values and the output are separate products
            self.forward_flop += 4 * channels * places * keys
            self.adapter_width += 6 * channels + 2 * width
        self.squared_flop += 4 * channels * places * places
        self.product(channels, 8 * channels, places)
        self.product(4 * channels, channels, places)
        self.linear_adapter_width += 14 * channels
        self.kept_values += (6 + 4 + 2 + 16) * channels * places


def _by_level(config: HubConfig, key: str, usual: int, levels: int) -> list[int]:
    """Return a number per level, from a list of this length or from a single number."""
    value = config.keys.get(key)
    found = (
        config.sizes(key)
        if isinstance(value, list)
        else [config.size(key, usual, most=_MOST_BLOCKS)] * levels
    )
    if len(found) != levels or max(found) > _MOST_BLOCKS:
        raise config.refuse(key, f"a whole number up to {_MOST_BLOCKS}, or one for each of {levels} levels")
    return found


_MOST_BLOCKS: Final = 100


def _attends(config: HubConfig, key: str, levels: int) -> list[bool]:
    """Return whether the blocks of each level have attention."""
    kinds = config.listed(key)
    if (
        not 1 <= levels <= _MOST_LEVELS
        or len(kinds) != levels
        or not all(each in _BLOCKS for each in map(str, kinds))
    ):
        raise config.refuse(key, f"one of {', '.join(sorted(_BLOCKS))} for each of {levels} levels")
    return ["Attn" in each for each in kinds]
