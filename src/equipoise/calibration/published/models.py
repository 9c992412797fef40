"""The model of a row: by the sizes it states, else by its name in the catalogue, else by neither and
refused.
"""

import re

from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.published.quantities import count, number, stated
from equipoise.errors import DataError
from equipoise.runs.readers.cells import MAX_TEXT, TextRow, echo
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.facts import canonical
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import EDIT, Workload
from equipoise.units import SI_PREFIXES

_MAX_LAYERS, _MAX_WIDTH, _MAX_HEADS, _MAX_TOKENS, _MAX_EXPERTS = 10_000, 1_000_000, 10_000, 10**9, 10_000
_MAX_PARAMS_B = 1e6
# Tokens of GPT-2's vocabulary, which its likes share; how far it is padded is not stated either.
_VOCABULARY = 50_257
_PARAMS_TOLERANCE = 0.03
# Feed-forward blocks are 2 to 8 hidden sizes wide; what lies outside is no feed-forward block but another
# model.
_NARROWEST, _WIDEST = 2.0, 8.0
_MOST_WORDS = 24


class Model(Struct, frozen=True, kw_only=True):
    """What a row trains: its sizes where it is a transformer, its entry in the catalogue where it has one.

    notes: what was assumed of it, in sentences.
    """

    transformer: Transformer | None
    known: Workload | None
    sequence: int | None
    notes: tuple[str, ...] = ()


def model_of(row: TextRow, catalogue: Catalogue | None = None) -> Model:
    """The model of a row. catalogue: the shipped one unless given.

    Raises DataError where it has neither sizes nor a name that the catalogue knows.
    """
    name = stated(row, "workload")
    known = known_workload(name, catalogue)
    sequence = count(row, "seq", most=_MAX_TOKENS) or (known.sequence_tokens if known else None)
    layers = count(row, "layers", most=_MAX_LAYERS)
    hidden = count(row, "hidden", most=_MAX_WIDTH)
    heads = count(row, "heads", most=_MAX_HEADS)
    catalogued = known.transformer if known else None
    if layers is None and hidden is None and heads is None:
        if known is None:
            raise DataError(
                f"workload {echo(name)}: the row states no layers, hidden and heads, and the catalogue does "
                f"not know the name; add it to {EDIT}"
            )
        return Model(transformer=catalogued, known=known, sequence=sequence)
    if catalogued is not None and hidden in {None, catalogued.hidden} and heads in {None, catalogued.heads}:
        if layers in {None, catalogued.layers}:
            return Model(transformer=catalogued, known=known, sequence=sequence)
        if catalogued.attention_layers is None and catalogued.expert_layers is None:
            scaled = replace(catalogued, layers=layers or catalogued.layers)
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


def known_workload(text: str, catalogue: Catalogue | None = None) -> Workload | None:
    """The workload of the catalogue that a text names in its longest run of words; None where it names none.

    >>> known_workload("nothing that anybody trained") is None
    True
    """
    table = (catalogue or shipped()).workload_table
    words = canonical(text[:MAX_TEXT]).split()[:_MOST_WORDS]
    without_blanks = {name.replace(" ", ""): name for name in table.names}
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            slug = table.slug(" ".join(run)) or table.slug(without_blanks.get("".join(run), ""))
            if slug is not None:
                return table.workloads[slug]
    return None


def _built(row: TextRow, *, layers: int, hidden: int, heads: int) -> tuple[Transformer, tuple[str, ...]]:
    """A plain transformer of the sizes a row states, with what GPT-like models have where it is silent."""
    if hidden % heads:
        raise row.refusal("heads", f"a divisor of hidden={hidden}")
    vocabulary = count(row, "vocabulary", most=_MAX_TOKENS) or count(row, "vocab_size", most=_MAX_TOKENS)
    ffn_hidden = count(row, "ffn_hidden", most=_MAX_WIDTH)
    experts, top_k = count(row, "experts", most=_MAX_EXPERTS), count(row, "top_k", most=_MAX_EXPERTS)
    notes = [] if vocabulary else [f"vocabulary not stated: {_VOCABULARY}, as GPT"]
    built = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary or _VOCABULARY,
        kv_heads=count(row, "kv_heads", most=_MAX_HEADS) or heads,
        head_size=hidden // heads,
        ffn_hidden=ffn_hidden or 4 * hidden,
        tied_embeddings=vocabulary is None,
        position_embeddings=1 if vocabulary is None else 0,
        experts=experts or 0,
        top_k=top_k or 0,
        expert_ffn_hidden=(ffn_hidden or 4 * hidden) if experts else 0,
    )
    params = number(row, "params_b", most=_MAX_PARAMS_B)
    if params is None or ffn_hidden is not None or experts:
        return built, tuple(notes)
    fitted = _of_params(built, params * SI_PREFIXES["G"])
    if fitted is not built:
        notes.append(f"{params:g}e9 parameters need a feed-forward width of {fitted.ffn_hidden}")
    return fitted, tuple(notes)


def _of_params(built: Transformer, params: float) -> Transformer:
    """The transformer with its feed-forward width such that its parameters are those stated, where it can
    be.
    """
    if abs(built.params / params - 1) <= _PARAMS_TOLERANCE:
        return built
    rest = built.params - built.layers * built.dense_params
    width = (params - rest) / built.layers / (2 * built.hidden)
    if not _NARROWEST * built.hidden <= width <= _WIDEST * built.hidden:
        return built
    return replace(built, ffn_hidden=round(width))


_COLLECTIVES = (
    (r"all[-_ ]?reduce", "all_reduce"),
    (r"reduce[-_ ]?scatter", "reduce_scatter"),
    (r"all[-_ ]?gather", "all_gather"),
    (r"all[-_ ]?to[-_ ]?all|a2a", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"send[-_ ]?recv|p2p|point[- ]to[- ]point", "send"),
)


def collective_of(text: str) -> str | None:
    """The collective operation a text names; None where it names none.

    >>> collective_of("nccl-tests all_reduce 8GiB")
    'all_reduce'
    """
    for words, operation in _COLLECTIVES:
        if re.search(rf"(?<![a-z0-9])(?:{words})(?:_perf)?(?![a-z0-9])", text.lower()):
            return operation
    return None


def is_matrix_product(text: str) -> bool:
    """Whether a text names a benchmark of matrix products alone."""
    return (
        re.search(r"\b(?:matmul|gemm|matrix (?:product|multiply|multiplication))\b", text.lower()) is not None
    )
