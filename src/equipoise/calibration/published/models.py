"""The model that a row trains: from the sizes that it states in columns or words, else from its name in the
catalogue; otherwise the row is rejected. Assumptions are noted.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.published.quantities import count, number, stated
from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, TextRow, echo
from equipoise.spec import canonical
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import EDIT, Image, Workload
from equipoise.units import SI_PREFIXES, format_si

_MAX_LAYERS, _MAX_WIDTH, _MAX_HEADS, _MAX_TOKENS, _MAX_EXPERTS = 10_000, 1_000_000, 10_000, 10**9, 10_000
_MAX_PARAMS_B = 1e6
# Size of GPT-2's vocabulary, which similar models share; padding is not stated and ignored.
_VOCABULARY = 50_257
_PARAMS_TOLERANCE = 0.03
# Largest ratio between counts of one model's parameters, with or without embeddings, padded or not.
_SAME_PARAMS = 1.5
# Feed-forward blocks are 2 to 8 hidden sizes wide; a ratio outside indicates another kind of model.
_NARROWEST, _WIDEST = 2.0, 8.0
_MOST_WORDS = 24
# Size of caches: tables repeat few workloads.
_MOST_KEPT = 4096


class Model(Struct, frozen=True, kw_only=True):
    """The model of a row: its sizes if it is a transformer, and its entry in the catalogue if it has one.

    notes: assumptions, as sentences.
    """

    transformer: Transformer | None
    known: Workload | None
    sequence: int | None
    notes: tuple[str, ...] = ()


def model_of(row: TextRow, catalogue: Catalogue) -> Model:
    """The model of a row.

    Raises DataError if it has neither sizes nor a name in the catalogue.
    """
    name = stated(row, "workload")
    known, of_pixels = _with_stated_pixels(_of_same_size(known_workload(name, catalogue), row), row)
    sequence = count(row, "seq", most=_MAX_TOKENS) or (known.sequence_tokens if known else None)
    layers = count(row, "layers", most=_MAX_LAYERS)
    hidden = count(row, "hidden", most=_MAX_WIDTH)
    heads = count(row, "heads", most=_MAX_HEADS)
    catalogued = _with_stated_vocabulary(known.transformer, row) if known and known.transformer else None
    as_known = Model(transformer=catalogued, known=known, sequence=sequence, notes=of_pixels)
    if layers is None and hidden is None and heads is None:
        if not name:
            raise DataError("no model: expected a column workload, or layers, hidden and heads")
        if known is None:
            raise DataError(
                f"workload {echo(name)}: the row states no layers, hidden and heads, and the catalogue does "
                f"not know the name; add it to {EDIT}"
            )
        return as_known
    if known is not None and known.transformer is None and _is_stated_whole(known, row):
        return as_known
    if catalogued is not None and hidden in {None, catalogued.hidden} and heads in {None, catalogued.heads}:
        if layers in {None, catalogued.layers}:
            return as_known
        if catalogued.attention_layers is None and catalogued.expert_layers is None:
            scaled = _cut(catalogued, layers or catalogued.layers)
            note = f"{catalogued.layers} layers in the catalogue, {layers} in the row: the row's are used"
            return Model(transformer=scaled, known=None, sequence=sequence, notes=(note,))
    if layers is None or hidden is None or heads is None:
        raise DataError(
            f"workload {echo(name)}: layers={layers}, hidden={hidden}, heads={heads}; expected all three "
            "where the catalogue does not know the model"
        )
    built, notes = _built(row, layers=layers, hidden=hidden, heads=heads)
    if sequence is not None and built.position_embeddings:
        built = replace(built, position_embeddings=sequence)
    return Model(transformer=built, known=None, sequence=sequence, notes=notes)


def _with_stated_vocabulary(catalogued: Transformer, row: TextRow) -> Transformer:
    """The catalogue's model, with the row's vocabulary if it states one (padded, or another tokenizer's)."""
    vocabulary = _vocabulary(row)
    return catalogued if vocabulary is None else replace(catalogued, vocabulary=vocabulary)


def _vocabulary(row: TextRow) -> int | None:
    return count(row, "vocab_size", most=_MAX_TOKENS) or _size(row, "vocabulary", most=_MAX_TOKENS)


def _of_same_size(known: Workload | None, row: TextRow) -> Workload | None:
    """The workload, or None if the row states a different number of parameters: `GPT 2.7B` is not GPT-2.

    A model cut to as many layers as the row states has the parameters of those layers.
    """
    params_b = number(row, "params_b", most=_MAX_PARAMS_B)
    if known is None or not known.params or params_b is None:
        return known
    sizes = [known.params]
    layers = count(row, "layers", most=_MAX_LAYERS)
    if known.transformer is not None and layers is not None and _is_as_wide(known.transformer, row):
        sizes.append(_cut(known.transformer, layers).params)
    ratios = (params_b * SI_PREFIXES["G"] / each for each in sizes)
    return known if any(1 / _SAME_PARAMS <= ratio <= _SAME_PARAMS for ratio in ratios) else None


def _cut(known: Transformer, layers: int) -> Transformer:
    """The model with another number of layers, of which the same share attends in windows."""
    return replace(known, layers=layers, windowed_layers=round(known.windowed_layers * layers / known.layers))


def _is_as_wide(catalogued: Transformer, row: TextRow) -> bool:
    """Whether a row states no other width or number of heads than the catalogue's, all whose layers are of
    one kind but for the first ones: fewer of them are the same model, cut.
    """
    hidden, heads = count(row, "hidden", most=_MAX_WIDTH), count(row, "heads", most=_MAX_HEADS)
    is_same = hidden in {None, catalogued.hidden} and heads in {None, catalogued.heads}
    return is_same and catalogued.attention_layers is None and catalogued.expert_layers is None


def _is_stated_whole(known: Workload, row: TextRow) -> bool:
    """Whether to use a workload's figures per sample for a row that states its sizes and parameters.

    Such figures are more accurate than a stack of layers of the same width, which assumes a vocabulary.
    """
    return not known.lacks and number(row, "params_b", most=_MAX_PARAMS_B) is not None


def _with_stated_pixels(known: Workload | None, row: TextRow) -> tuple[Workload | None, tuple[str, ...]]:
    """The workload with the image size that the row states in words, and a note.

    Unchanged if the row states none, or if the catalogue does not know how the workload scales with it.
    """
    if known is None or known.image is None:
        return known, ()
    if known.transformer is not None and stated(row, "seq"):
        return known, ()
    other = stated_image(stated(row, "workload"), stated(row, "parallel_config"), known.image)
    if other is None or {other.width, other.height} == {known.image.width, known.image.height}:
        return known, ()
    share = other.pixels / known.image.pixels
    note = f"at {other.width} x {other.height} pixels: {share:.3g} of the catalogue's sample"
    return known.on_images(other), (note,)


# An image size in words: two sides, or one with a unit or a word that identifies it.
_ALONE = r"(?<![\w.,/\u00d7^-])(?<![x\u00d7*] )"
_PAIR = rf"{_ALONE}(?P<width>\d{{2,5}}) ?[x\u00d7*] ?(?P<height>\d{{2,5}})(?![\w.\u00d7]| ?[x\u00d7*] ?\d)"
_SIDE = r"(?P<side>\d{1,2},\d{3}|\d{2,5})"
_UNIT = r"(?:pix(?:els?)?|px|images?|pictures?|crops?|res(?:olution)?)\b"
_WORD = (
    r"\b(?:(?:image|input|crop|img|train)[-_ ]?(?:size|res(?:olution)?)|res(?:olution)?|images|pixels)"
    r"(?: of| at)?[ =:]{1,3}"
)
_SQUARE = rf"{_ALONE}(?P<squared>\d{{2,5}})(?:\^2\b|\u00b2)"
_STATED_PIXELS: Final = tuple(
    re.compile(each, re.IGNORECASE)
    for each in (
        rf"{_PAIR}[- ]?{_UNIT}",
        rf"{_WORD}{_PAIR}",
        rf"{_ALONE}{_SIDE}[- ]?(?:pix(?:els?)?|px)\b",
        rf"\bat {_SIDE}[- ]res(?:olution)?\b",
        rf"{_WORD}{_SIDE}(?![\w.,\u00d7^]| ?[x\u00d7*] ?\d)",
    )
)
# Patterns of image sizes only next to a model's name: after its patch (ViT-B/16 384), or two sides alone.
_PIXELS_OF_NAME: Final = tuple(
    re.compile(each, re.IGNORECASE)
    for each in (
        rf"{_PAIR}(?! ?(?:latents?|tokens?|patch))",
        _SQUARE,
        r"(?:/|patch)\d{1,2}(?:[-_, ]+window\d{1,2})?[-_@, ]+(?:at )?(?P<side>\d{3,4})(?=$|[,;)(])",
    )
)
# Models of smaller images have another stem; larger images are not training samples.
_LEAST_SIDE, _MOST_SIDE = 96, 4096


def stated_image(name: str, set_up: str, known: Image) -> Image | None:
    """The image size stated in a model's name or set-up; None if there is none, or several.

    known: the image of the catalogue entry, whose shape applies if only one side is stated.

    >>> stated_image("ResNet-50, 160 pixels", "", Image(width=224, height=224)).pixels
    25600
    """
    places = ((name, (*_STATED_PIXELS, *_PIXELS_OF_NAME)), (set_up, _STATED_PIXELS))
    matches = (
        match for text, patterns in places for each in patterns for match in each.finditer(text[:MAX_TEXT])
    )
    found = {other for match in matches if (other := _image_of(match, known)) is not None}
    return found.pop() if len(found) == 1 else None


def _image_of(match: re.Match[str], known: Image) -> Image | None:
    """The image that a match states; None if its sides are implausible."""
    sides = {name: int(text.replace(",", "")) for name, text in match.groupdict().items() if text}
    if not all(_LEAST_SIDE <= each <= _MOST_SIDE for each in sides.values()):
        return None
    if {"width", "height"} <= sides.keys():
        return replace(known, width=sides["width"], height=sides["height"])
    return known.of_side(next(iter(sides.values())))


@lru_cache(maxsize=_MOST_KEPT)
def known_workload(text: str, catalogue: Catalogue) -> Workload | None:
    """The workload of the catalogue that matches the longest run of words in a text; None if none matches.

    Its samples have full length, because for steps timed alone nothing indicates that padding was removed.

    >>> from equipoise.spec.catalogue import shipped
    >>> known_workload("nothing that anybody trained", shipped()) is None
    True
    """
    text = text[:MAX_TEXT]
    table = catalogue.workload_table
    words = canonical(text).split()[:_MOST_WORDS]
    without_blanks = {name.replace(" ", ""): name for name in table.names}
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            slug = table.slug(" ".join(run)) or table.slug(without_blanks.get("".join(run), ""))
            if slug is not None and _begins_a_word(text, run[0]):
                return replace(table.workloads[slug], unpadded_tokens=None)
    return None


def _begins_a_word(text: str, name: str) -> bool:
    """Whether a name begins at a word boundary in the text: R-CNN does not match CNN."""
    return re.search(rf"(?<![\w-]){re.escape(name)}", text, re.IGNORECASE) is not None


# Signs of a mixture of experts: the word, the active parameters (30B-A3B), or 8x7B.
_IS_MIXTURE: Final = re.compile(
    r"\bmoe\b|\bexperts?\b|\b\d+(?:\.\d+)?b[- ]a\d+(?:\.\d+)?b\b|\b\d+x\d+(?:\.\d+)?b\b", re.IGNORECASE
)


class Experts(Struct, frozen=True, kw_only=True):
    """Experts of a layer. width: feed-forward width of each, None if not stated. shared_width: total width of
    shared experts. dense_layers: number of layers without experts.
    """

    experts: int
    top_k: int
    width: int | None
    shared_width: int
    dense_layers: int


def experts_of(row: TextRow) -> Experts | None:
    """The experts of a row's model; None if it is not a mixture of experts.

    Raises DataError for a mixture that does not state its number of experts or of active experts.
    """
    name = stated(row, "workload")
    if count(row, "experts", most=_MAX_EXPERTS) is None and _IS_MIXTURE.search(name) is None:
        return None
    experts, top_k = (_size(row, each, most=_MAX_EXPERTS) for each in ("experts", "top_k"))
    if not experts or not top_k:
        raise DataError(
            f"workload {echo(name)}: a mixture of experts={experts}, top_k={top_k}; expected both, in "
            "columns or in words such as `64 experts top-8`"
        )
    width = _in_words(row, "expert width", most=_MAX_WIDTH)
    num_shared = _in_words(row, "shared experts", most=_MAX_EXPERTS) or 0
    shared_width = _in_words(row, "shared width", most=_MAX_WIDTH) or num_shared * (width or 0)
    return Experts(
        experts=experts,
        top_k=top_k,
        width=width,
        shared_width=shared_width,
        dense_layers=_in_words(row, "dense layers", most=_MAX_LAYERS) or 0,
    )


# BERT, RoBERTa, DistilBERT and similar: attention is bidirectional, and logits are computed for the 15 % of
# tokens that are masked, over 30,522 words (Devlin et al. 2018, section 3.1; configuration of
# bert-base-uncased).
_ENCODER = re.compile(r"bert|electra", re.IGNORECASE)
_ENCODER_VOCABULARY = 30522
_MASKED_FRACTION = 0.15


# Models with feed-forward blocks of three matrices (Shazeer 2020), which a stated width does not reveal:
# LLaMA and models with its block. If parameters are stated, they decide instead.
_GATED = re.compile(r"swiglu|geglu|gated|llama|mistral|mixtral|qwen|gemma", re.IGNORECASE)
_HEAD_SIZE = re.compile(r"\bhead[-_ ](?:dim|size)[ =]+(\d{1,4})\b", re.IGNORECASE)
# Patterns of sizes stated in words, by column if there is one.
_STATED_SIZES: Final = {
    "vocabulary": r"\bvocab(?:ulary)?(?:[-_ ]size)?(?: padded to)?[ =]+(\d{2,7}k?)\b",
    "kv_heads": r"\b(?:gqa|kv[-_ ]heads)[ =]+(\d{1,4})\b(?! kv)|\b(\d{1,4}) kv[-_ ]heads\b",
    "ffn_hidden": r"\b(?:feed[-_ ]forward|ffn(?:[-_ ]hidden)?|mlp[-_ ]dim)[ =]+(\d{2,7})\b",
    "experts": (
        r"\b(\d{1,5})(?: routed| swiglu| gated| relu2?| gelu| fine-grained)? experts\b"
        r"|\bexperts? ?[=:] ?(\d{1,5})\b|\b(\d{1,3})x\d+(?:\.\d+)?b\b"
    ),
    "top_k": r"\btop[-_ ]?(?:k ?[=:]? ?)?(\d{1,4})\b",
    "expert width": (
        r"\bexperts\b[^;,()]*?\b(?:of|ffn|width)[ =](\d{2,7})\b"
        r"|\bexpert[- ](?:intermediate(?:[- ]size)?|ffn|width|hidden)[ =:]+(\d{2,7})\b"
    ),
    "shared experts": r"(?:\+|\band|,) ?(\d{1,2}) shared\b",
    "shared width": r"\bshared experts?(?: of| ffn)?[ =](\d{2,7})\b",
    "dense layers": r"\b(\d{1,4}) dense\b",
}


def stated_words(row: TextRow) -> str:
    """The free text of a row: the name of the model, and the configuration."""
    return f"{stated(row, 'workload')} {stated(row, 'parallel_config')}"


def _size(row: TextRow, name: str, *, most: int) -> int | None:
    """A size of the model from its column, else from words such as `vocabulary 250k`; None if neither."""
    given = count(row, name, most=most)
    return _in_words(row, name, most=most) if given is None else given


def _in_words(row: TextRow, name: str, *, most: int) -> int | None:
    """A size that a row states in words; None if it states none, or more than `most`."""
    found = re.search(_STATED_SIZES[name], stated_words(row), re.IGNORECASE)
    value = 0 if found is None else int(next(filter(None, found.groups())).lower().replace("k", "000"))
    return value if found is not None and value <= most else None


def _built(row: TextRow, *, layers: int, hidden: int, heads: int) -> tuple[Transformer, tuple[str, ...]]:
    """A transformer of the stated sizes, with assumptions as notes.

    Sizes that are not stated are those of GPT-like models, or of BERT-like ones if it is named so.
    """
    stated_size = _HEAD_SIZE.search(stated(row, "parallel_config"))
    if hidden % heads and stated_size is None:
        raise row.refusal("heads", f"a divisor of hidden={hidden}")
    vocabulary = _vocabulary(row)
    ffn_hidden = _size(row, "ffn_hidden", most=_MAX_WIDTH)
    mixture = experts_of(row)
    is_encoder = _ENCODER.search(stated(row, "workload")) is not None
    is_gated = _GATED.search(stated_words(row)) is not None
    usual, like = (_ENCODER_VOCABULARY, "BERT") if is_encoder else (_VOCABULARY, "GPT")
    notes = [] if vocabulary else [f"vocabulary not stated: {usual}, as {like}"]
    params = number(row, "params_b", most=_MAX_PARAMS_B)
    built = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary or usual,
        kv_heads=_size(row, "kv_heads", most=_MAX_HEADS) or heads,
        head_size=int(stated_size[1]) if stated_size else hidden // heads,
        ffn_hidden=ffn_hidden or 4 * hidden,
        # Experts are assumed to have three matrices, as since Mixtral.
        gated=mixture is not None or (ffn_hidden is not None and is_gated),
        tied_embeddings=vocabulary is None,
        position_embeddings=1 if vocabulary is None else 0,
        causal=not is_encoder,
        predicted_fraction=_MASKED_FRACTION if is_encoder else 1.0,
    )
    total = None if params is None else params * SI_PREFIXES["G"]
    if mixture is not None:
        return _with_experts(built, mixture, total), tuple(notes)
    if total is None:
        return built, tuple(notes)
    if ffn_hidden is not None:
        return _nearest_variant(built, total), tuple(notes)
    if vocabulary is not None:
        built = _nearest((built, replace(built, tied_embeddings=not built.tied_embeddings)), total)
    fitted = _with_params(built, total, gated=is_gated)
    if fitted is not built:
        notes.append(f"{params:g}e9 parameters need a feed-forward width of {fitted.ffn_hidden}")
    return fitted, tuple(notes)


def _with_experts(built: Transformer, mixture: Experts, params: float | None) -> Transformer:
    """The transformer with experts; if their width is not stated, it follows from the number of parameters.

    Raises DataError if no layer is left for experts, or if the number of parameters is contradictory.
    """
    if mixture.dense_layers >= built.layers:
        raise DataError(
            f"a mixture with {mixture.dense_layers} dense layers of {built.layers}; expected fewer"
        )
    width = mixture.width or built.ffn_hidden
    mixed = replace(
        built,
        dense_layers=mixture.dense_layers or None,
        experts=mixture.experts,
        top_k=mixture.top_k,
        expert_ffn_hidden=width,
        shared_expert_ffn_hidden=mixture.shared_width,
    )
    if params is None:
        return mixed
    if mixture.width is None:
        wider = replace(mixed, expert_ffn_hidden=width + 1)
        mixed = replace(
            mixed, expert_ffn_hidden=round(width + (params - mixed.params) / (wider.params - mixed.params))
        )
    if mixed.expert_ffn_hidden < 1 or not 1 / _SAME_PARAMS <= mixed.params / params <= _SAME_PARAMS:
        raise DataError(
            f"a mixture of {mixture.experts} experts in {built.layers} layers of {built.hidden}: "
            f"{format_si(mixed.params, '')} parameters by its sizes, {format_si(params, '')} in the row"
        )
    return mixed


def _nearest_variant(built: Transformer, params: float) -> Transformer:
    """The variant, gated or not, with tied embeddings or not, whose parameters are nearest to `params`."""
    kinds = (
        replace(built, gated=gated, tied_embeddings=tied)
        for gated in (built.gated, not built.gated)
        for tied in (built.tied_embeddings, not built.tied_embeddings)
    )
    return _nearest(kinds, params)


def _nearest(kinds: Iterable[Transformer], params: float) -> Transformer:
    """The transformer whose number of parameters is nearest to `params`."""
    return min(kinds, key=lambda each: abs(each.params / params - 1))


def _with_params(built: Transformer, params: float, *, gated: bool) -> Transformer:
    """The transformer with the feed-forward width that gives the stated parameters, if one does.

    gated: whether its feed-forward blocks then have three matrices.
    """
    if abs(built.params / params - 1) <= _PARAMS_TOLERANCE:
        return built
    rest = built.params - built.layers * built.dense_params
    width = (params - rest) / built.layers / (2 * built.hidden)
    if not _NARROWEST * built.hidden <= width <= _WIDEST * built.hidden:
        return built
    return replace(built, gated=gated, ffn_hidden=round(width * (2 / 3 if gated else 1)))
