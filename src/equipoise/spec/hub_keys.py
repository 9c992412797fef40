"""Reads sizes from the keys of a config.json, which depend on the family of models (model_types.toml)."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.files import converted, shipped_table
from equipoise.spec import is_number, shown
from equipoise.spec.workload import Area

MODEL_TYPES_FILE = Path(__file__).with_name("model_types.toml")
# Larger than in any model; a larger size is an error in the file.
MOST_SIZE: Final = 10**9
MOST_LAYERS: Final = 10_000
MOST_NAME: Final = 100
_USUAL_FFN_RATIO: Final = 4.0
USUAL_SEQUENCE_TOKENS: Final = 4096
# Parts of a family that add layers of experts.
_WITH_EXPERTS: Final = frozenset(
    {"experts", "llama4", "hybrid", "expert_stacks", "dense_beside", "shortcut", "gemma4"}
)


# Names of kinds of attention in lists of layers.
WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention"})
WHOLE: Final = frozenset({"full_attention", "indexed_attention"})

# Sizes of a transformer, by the names of its fields.
Sizes: TypeAlias = dict[str, Any]


class Denoiser(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The structure of a diffusion model's transformer: the fields of `denoiser` in model_types.toml."""

    double: str | None = None
    single: str | None = None
    image_refiners: str | None = None
    text_refiners: str | None = None
    text_stream: str | None = None
    joins_text: bool = True
    modulation: float = 0.0
    single_modulation: float = 0.0
    modulation_width: str | None = None
    shared_modulation: float = 3.0
    text_width: tuple[str, ...] = ()
    text_tokens: int
    image_width: str | None = None
    image_tokens: int = 0
    is_linear: bool = False
    pixels: tuple[int, int] = (1024, 1024)
    frames: int = 1
    latent_pixels: int = 8
    latent_pixels_by_channels: Mapping[str, int] = {}
    latent_frames: int = 1


class FrozenModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A forward-only part of a diffusion model: an encoder of texts, images or videos."""

    params: float
    source: str
    tokens: int | None = None
    flop_per_pixel: float | None = None

    def flop(self, *, text_tokens: int, num_pixels: int) -> float:
        """Return the FLOP per sample. text_tokens: of the text. num_pixels: of all frames."""
        if self.flop_per_pixel is not None:
            return self.flop_per_pixel * num_pixels
        return 2 * self.params * (text_tokens if self.tokens is None else self.tokens)


class Family(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for reading configurations of some `model_type`s: the fields of model_types.toml."""

    types: tuple[str, ...]
    parts: tuple[str, ...] = ()
    area: Area = "language"
    gated: bool = True
    tied: bool = False
    causal: bool = True
    position_tables: int = 0
    window_every: int | None = None
    predicted_fraction: float = 1.0
    merged: tuple[str, ...] = ()
    names: Mapping[str, Any] = {}
    fixed: Mapping[str, Any] = {}
    ffn_ratio: float = _USUAL_FFN_RATIO
    top_k: int | None = None
    state_matrices: float = 0.0
    has_matrix_states: bool = False
    idle_matrices: float = 0.0
    low_ranks: tuple[str, ...] = ()
    denoiser: Denoiser | None = None
    frozen: tuple[str, ...] = ()
    frozen_by_text_width: Mapping[str, tuple[str, ...]] = {}
    frozen_with_image: tuple[str, ...] = ()
    sequence_tokens: int = USUAL_SEQUENCE_TOKENS
    without: str | None = None
    lacks: str | None = None
    usual_batch_samples: int | None = None
    usual_batch_source: str | None = None

    @property
    def has_ffn_ratio(self) -> bool:
        """Return whether feed-forward widths are derived from the hidden size by the family's own ratio."""
        return self.ffn_ratio != _USUAL_FFN_RATIO


class _Assumed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The criteria for a decoder like Llama among unknown types: `assumed` in model_types.toml."""

    sizes: tuple[str, ...]
    further_sizes: tuple[str, ...]
    gated_activations: tuple[str, ...]
    plain_activations: tuple[str, ...]
    unlike: str
    adds_no_layers: str


class _Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of model_types.toml: keys by size, families, and defaults of nested models."""

    size: Mapping[str, Mapping[Literal["keys"], tuple[str, ...]]]
    assumed: _Assumed
    family: Mapping[str, Family]
    nested: Mapping[str, Mapping[str, Any]]
    frozen: Mapping[str, FrozenModel]


@cache
def _tables() -> _Tables:
    return converted(shipped_table(MODEL_TYPES_FILE), _Tables)


@cache
def _families() -> dict[str, Family]:
    """Return the families by `model_type`."""
    return {kind: family for family in _tables().family.values() for kind in family.types}


class HubConfig(Struct, frozen=True, kw_only=True):
    """The keys of a file, or of its part that describes one model, and the family by which they are read."""

    path: Path
    keys: Mapping[str, Any]
    family: Family

    def refuse(self, key: str, expected: str) -> SpecError:
        """Return the error for an invalid key."""
        return SpecError(f"{self.path}: {key}={shown(self.keys.get(key))}; expected {expected}")

    def named(self, name: str) -> tuple[str, ...]:
        """Return the keys that may state a size."""
        known = _tables().size.get(name, {"keys": (name,)})
        return (*self.family.names.get(name, ()), *known["keys"])

    def stated(self, name: str) -> str | None:
        """Return the key under which a size is stated; None if it is absent or null."""
        return next((each for each in self.named(name) if self.keys.get(each) is not None), None)

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST_SIZE) -> int:
        """Return a size, a whole number or a list that repeats one number.

        Raises SpecError if it is invalid, or missing without a default.
        """
        key = self.stated(name)
        if key is None:
            if default is None:
                known = " or ".join(self.named(name))
                raise SpecError(f"{self.path}: {known} is missing; expected a whole number from {least} up")
            return default
        value = self.keys[key]
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if not is_whole(value, least, most):
            raise self.refuse(key, f"a whole number from {least} to {most:,}")
        return value

    def sizes(self, key: str) -> list[int]:
        """Return a list of whole numbers. Raises SpecError if it is invalid or empty."""
        value = self.listed(key)
        if not value or not all(is_whole(each, 1, MOST_SIZE) for each in value):
            raise self.refuse(key, "a list of whole numbers")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false. Raises SpecError for anything else."""
        value = self.keys.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return default if value is None else value

    def listed(self, key: str) -> list[Any]:
        """Return a list; empty if the file has none. Raises SpecError for anything else."""
        value = self.keys.get(key)
        if value is not None and (not isinstance(value, list) or len(value) > MOST_LAYERS):
            raise self.refuse(key, f"a list of at most {MOST_LAYERS:,} layers")
        return value or []

    def num_layers(self, key: str | None) -> int:
        """Return the number of layers under a key; 0 if the file or the family has no such key."""
        return self.size(key, 0, least=0, most=MOST_LAYERS) if key else 0

    @property
    def frozen(self) -> tuple[FrozenModel, ...]:
        """Return the forward-only parts beside the model."""
        width = str(self.keys.get("encoder_hid_dim") or self.keys.get("cross_attention_dim"))
        names = self.family.frozen_by_text_width.get(width, self.family.frozen)
        further = self.family.frozen_with_image if self.image_width else ()
        return tuple(_tables().frozen[name] for name in (*names, *further))

    @property
    def image_width(self) -> int:
        """Return the width of image tokens that layers of a diffusion model attend to; 0 without any."""
        about = self.family.denoiser
        return self.size(about.image_width, 0) if about is not None and about.image_width else 0

    def table(self, key: str) -> Mapping[str, Any]:
        """Return a table of tables or whole numbers; empty if absent. Raises SpecError if invalid."""
        value = self.keys.get(key, {})
        if not isinstance(value, dict) or not all(
            isinstance(e, dict) or is_whole(e, 1, MOST_SIZE) for e in value.values()
        ):
            raise self.refuse(key, "a table")
        return value

    def experts(self, width: int | None = None) -> Sizes:
        """Return the number of routed experts, the number per token, and their width."""
        return {
            "experts": self.size("experts"),
            "top_k": self.size("top_k", self.family.top_k),
            "expert_ffn_hidden": self.size("expert_ffn_hidden") if width is None else width,
        }

    def part(self, kind: str) -> "HubConfig":
        """Return the text or vision model of a pair, with the defaults that files omit."""
        inner = self.keys.get(f"{kind}_config")
        if not isinstance(inner, dict):
            raise self.refuse(f"{kind}_config", "the sizes of this part, as a table")
        usual = f"{self.keys.get('model_type')}_{kind}_model"
        stated = next(
            (each for each in (inner.get("model_type"), usual) if family_of_type(each)), f"clip_{kind}_model"
        )
        return hub_config(self.path, inner, kind=stated, is_nested=True)


def is_factor(value: object) -> TypeGuard[float]:
    """Return whether a value of a file is a valid factor of a size."""
    return is_number(value) and 0 < value <= _MOST_FACTOR


_MOST_FACTOR: Final = 1000


def is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    """Return whether a value of a file is a whole number within limits."""
    return is_number(value) and isinstance(value, int) and least <= value <= most


def family_of_type(kind: object) -> Family | None:
    """Return the family of a `model_type`; None if unknown."""
    return _families().get(kind) if isinstance(kind, str) else None


_OF_LATENT_ATTENTION: Final = frozenset({"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})


def hub_config(path: Path, keys: Mapping[str, Any], *, kind: object, is_nested: bool) -> HubConfig:
    """Return the keys with their family. Raises SpecError if no family matches the model."""
    family = family_of_type(kind)
    stated = keys.get("model_type")
    asked = "_class_name" if stated is None else "model_type"
    left_out = _tables().nested.get(stated if isinstance(stated, str) else str(kind), {}) if is_nested else {}
    if family is None and stated is None:
        raise SpecError(
            f"{path}: {asked}={shown(kind)}, a model of diffusers whose sizes are not read; count it as "
            "MODULE:FUNCTION, or state it in a file (`equipoise list workloads --example`)"
        )
    if family is None:
        family = _assumed_family(path, keys, kind)
    if family.lacks is not None:
        raise SpecError(
            f"{path}: {asked}={shown(kind)} cannot be read: it has {family.lacks}, which no size here "
            "states; count it as MODULE:FUNCTION"
        )
    found = {key: value for key, value in keys.items() if value is not None}
    if found.get("use_mla") is False:  # the sizes of latent attention are zero then
        found = {key: value for key, value in found.items() if key not in _OF_LATENT_ATTENTION}
    for key in family.merged:
        if isinstance(inner := keys.get(key), dict):
            found = inner | found
    config = HubConfig(path=path, keys={**left_out, **found}, family=family)
    if not _WITH_EXPERTS & set(family.parts) and config.size("experts", 0, least=0) > 1:
        key = config.stated("experts") or "experts"
        raise config.refuse(key, f"no experts in a model of type {kind}; count it as MODULE:FUNCTION")
    return config


def _assumed_family(path: Path, keys: Mapping[str, Any], kind: object) -> Family:
    """Return Llama's family for an unknown type, with experts and latent attention if keys state their sizes.

    Raises SpecError if the file lacks a size, or has keys of features that such a model lacks.
    """
    if not isinstance(kind, str) or len(kind) > MOST_NAME or not kind.isprintable():
        raise SpecError(f"{path}: model_type={shown(kind)}; expected its name")
    llama, known = _families()["llama"], _tables().assumed
    config = HubConfig(path=path, keys=keys, family=llama)
    has_experts = config.size("experts", 0, least=0) > 1
    sizes = (*known.sizes, "expert_ffn_hidden" if config.stated("expert_ffn_hidden") else "ffn_hidden")
    missing = [config.named(size)[0] for size in sizes if config.stated(size) is None]
    if keys.get("hidden_act") not in known.gated_activations and not any(
        "rms" in key and keys[key] for key in keys
    ):
        missing.append("rms_norm_eps")
    stated = {key for size in known.further_sizes for key in config.named(size)}
    unlike = sorted(
        key
        for key, value in keys.items()
        if value
        and key not in stated
        and re.search(known.unlike, key)
        and not re.search(known.adds_no_layers, key)
    )
    built = [each for each in config.listed("architectures") if isinstance(each, str)]
    other = next((each for each in built if not each.endswith(("ForCausalLM", "LMHeadModel"))), None)
    why = (
        (missing and f"without {', '.join(missing[:4])}")
        or (unlike and f"with {', '.join(unlike[:4])[:120]}")
        or (other and f"with architectures={shown(other)}")
    )
    if why:
        raise SpecError(
            f"{path}: model_type={shown(kind)} is not known, and {why} it is not read as a decoder like "
            "Llama; count it as MODULE:FUNCTION"
        )
    latent = ("latent",) if config.stated("kv_rank") else ()
    return replace(
        llama,
        gated=keys.get("hidden_act") not in known.plain_activations,
        parts=(*latent, *(("experts", "predicting") if has_experts else ())),
    )
