"""A model's config.json, as the Hugging Face hub has it, as a workload.

No network, and nothing of it is run.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from equipoise.errors import DataError, SpecError
from equipoise.files import parsed_json, read_input
from equipoise.spec import shown
from equipoise.spec.hub_diffusion import UNet, latents, with_frozen
from equipoise.spec.hub_keys import MOST_NAME, HubConfig, family_of_type, hub_config
from equipoise.spec.hub_layers import sample_tokens, sizes
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import format_count, format_si

_MOST_BYTES: Final = 1_000_000
# Where a model of images or sounds as well keeps its language model.
_LANGUAGE: Final = ("text_config", "llm_config", "language_config", "thinker_config")
# bf16: what activations of figures per sample are stated in.
_BYTES_PER_VALUE: Final = 2.0
# A key of models that compare texts with images.
_PAIRED: Final = "logit_scale_init_value"
# Tables of a file that are called as models are, and are none.
_NO_MODEL: Final = frozenset(
    {"attn_config", "ffn_config", "quantization_config", "linear_attn_config", "per_layer_config", *_LANGUAGE}
)
_SAMPLES: Final[Mapping[str, str]] = {"vision": "image", "speech": "utterance", "forecasting": "series"}


class HubModel(Struct, frozen=True, kw_only=True):
    """The workload of a config.json. left_out: what the file has besides that no part of it stands for.

    assumed: what was taken for granted of a model that is not known, in words.
    """

    workload: Workload
    left_out: tuple[str, ...] = ()
    of_samples: str | None = None
    assumed: str | None = None


def read_config(path: Path) -> HubModel:
    """The model of a config.json.

    A type that is not known is read as a decoder like Llama where the file has the sizes of one and nothing
    that such a model lacks; `assumed` says so. Raises SpecError in one sentence where the file is none, or
    the model cannot be described.
    """
    outer, path = _model_of(_read(path), path)
    keys, is_nested = outer, False
    kind = outer["_class_name"] if outer.get("model_type") is None else outer["model_type"]
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


def _read(path: Path) -> dict[str, Any]:
    """The document. Raises SpecError for what is no small JSON object."""
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
    """The model that a document describes, and where: of a pipeline of diffusers that which removes noise."""
    part = next((each for each in ("transformer", "unet") if isinstance(found.get(each), list)), None)
    if found.get("model_type") is not None or part is None:
        return found, path
    inner = path.parent / part / "config.json"
    if not inner.is_file():
        raise SpecError(
            f"{path}: the {part} of a {shown(found['_class_name'])} is in {part}/config.json, which is not "
            "in its folder; give that file"
        )
    return _read(inner), inner


def _transformer_facts(config: HubConfig) -> dict[str, Any]:
    """Fields of the workload of a transformer. Raises SpecError where its sizes are none of a model."""
    try:
        model = Transformer(**sizes(config))
    except SpecError as err:
        where = "" if str(err).startswith(f"{config.path}:") else f"{config.path}: "
        raise SpecError(f"{where}{err}") from err
    return {
        "params": float(model.params),
        "transformer": model,
        "sequence_tokens": sample_tokens(config, model),
    }


def _unet_facts(config: HubConfig) -> dict[str, Any]:
    """Fields of the workload of a U-Net: its figures per sample."""
    found = UNet(config)
    return {
        "params": float(found.params),
        "forward_flop_per_sample": float(found.forward_flop),
        "activation_bytes_per_sample": _BYTES_PER_VALUE * found.kept_values,
        "boundary_bytes_per_sample": _BYTES_PER_VALUE * found.widest_values,
        "layers": found.layers,
        "adapter_width": found.adapter_width,
        "linear_adapter_width": found.adapter_width + found.linear_adapter_width,
    }


def _sample_name(config: HubConfig) -> str:
    """What a sample is called."""
    if config.family.denoiser is not None:
        return "video" if latents(config).pixel_frames > 1 else "image"
    return _SAMPLES.get(config.family.area, "sequence")


def _samples_words(config: HubConfig, tokens: int | None) -> str | None:
    """What a sample of a diffusion model is, in words; None for other models.

    tokens: None where a sample has none.
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
    """What an assumed family has besides Llama's layers, in words."""
    words = {"experts": "experts", "latent": "latent attention"}
    found = " and ".join(words[part] for part in parts if part in words)
    return f" with {found}" if found else ""


def _left_out(config: HubConfig, outer: Mapping[str, Any]) -> tuple[str, ...]:
    """What the sizes do not stand for: other models, keys of parts, and what the family is without."""
    family = config.family
    parts = [] if "predicting" in family.parts else ["num_nextn_predict_layers"]
    models = {
        key for key, value in outer.items() if key.endswith("_config") and value and isinstance(value, dict)
    }
    models -= _NO_MODEL
    if "pair" in family.parts:
        models -= {"vision_config"}
    if "prompted" in family.parts:
        models -= {"vision_config", "prompt_encoder_config", "mask_decoder_config"}
    further = [each for each in ("quantization_config", *parts) if config.keys.get(each)]
    return (*sorted(models), *further, *((family.without,) if family.without else ()))
