"""A model's config.json, as the Hugging Face hub has it, as a workload.

No network, and nothing of it is run.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from equipoise.errors import DataError, SpecError
from equipoise.files import read_input
from equipoise.spec.hub_keys import MOST_NAME, HubConfig, family_of_type, hub_config
from equipoise.spec.hub_layers import sample_tokens, sizes
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import format_si

_MOST_BYTES: Final = 1_000_000
# Where a model of images or sounds as well keeps its language model.
_LANGUAGE: Final = ("text_config", "llm_config", "language_config", "thinker_config")
# Tables of a file that are called as models are, and are none.
_NO_MODEL: Final = frozenset({"attn_config", "ffn_config", "quantization_config", *_LANGUAGE})
_SAMPLES: Final[Mapping[str, str]] = {"vision": "image", "speech": "utterance"}


class HubModel(Struct, frozen=True, kw_only=True):
    """The workload of a config.json. left_out: what the file has besides that no part of it stands for.

    assumed: what was taken for granted of a model that is not known, in words.
    """

    workload: Workload
    left_out: tuple[str, ...] = ()
    assumed: str | None = None


def read_config(path: Path) -> HubModel:
    """The model of a config.json.

    A type that is not known is read as a decoder like Llama where the file has the sizes of one and nothing
    that such a model lacks; `assumed` says so. Raises SpecError in one sentence where the file is none, or
    the model cannot be described.
    """
    outer = _read(path)
    keys, kind, is_nested = outer, outer["model_type"], False
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
    try:
        model = Transformer(**sizes(config))
    except SpecError as err:
        raise SpecError(str(err) if str(err).startswith(f"{path}:") else f"{path}: {err}") from err
    amount = f"{format_si(float(model.params))} parameters"
    name = outer.get("_name_or_path")
    title = f"{kind} of {amount}"
    if isinstance(name, str) and 0 < len(name) <= MOST_NAME and name.isprintable():
        title = name
    assumed = None
    if family_of_type(kind) is None:
        assumed = (
            f"model_type={kind} is not known: read as a decoder like Llama{_further(family.parts)}, of "
            f"{amount}; compare them with the model card"
        )
    return HubModel(
        workload=Workload(
            slug=re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "config",
            title=title,
            area=family.area,
            source=f"{path.name} (model_type {kind})",
            sample=_SAMPLES.get(family.area, "sequence"),
            sequence_tokens=sample_tokens(config, model),
            params=float(model.params),
            transformer=model,
            usual_batch_samples=family.usual_batch_samples,
            usual_batch_source=family.usual_batch_source,
        ),
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
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise SpecError(f"{path}: not JSON: {str(err)[:100]}; expected the config.json of a model") from err
    if not isinstance(found, dict) or "model_type" not in found:
        kind = found.get("_class_name") if isinstance(found, dict) else None
        if isinstance(kind, str) and len(kind) <= MOST_NAME and kind.isprintable():
            raise SpecError(
                f"{path}: a model of diffusers ({kind}), whose sizes are not read; count it as "
                "MODULE:FUNCTION, or state it in a file (`equipoise list workloads --example`)"
            )
        raise SpecError(f"{path}: no model_type; expected the config.json of a model")
    return found


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
    further = [each for each in ("quantization_config", *parts) if config.keys.get(each)]
    return (*sorted(models), *further, *((family.without,) if family.without else ()))
