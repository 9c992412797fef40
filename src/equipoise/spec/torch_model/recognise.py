"""Whether a counted model is a plain transformer, and its sizes if so. No torch."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from equipoise.errors import SpecError
from equipoise.spec.transformer import Transformer

if TYPE_CHECKING:
    from equipoise.spec.torch_model.counted import AttentionShape, Counted

# A guess is taken only if weights and FLOP that follow from it are those counted, to this share of them.
TOLERANCE = 0.03


def transformer_sizes(counted: "Counted") -> Transformer | None:
    """The sizes of the transformer that a model is; None where it is none, or none that sizes say all of.

    Every attention must be alike, among the tokens of one sequence, and one to a layer. The hidden size is
    the one that most matrices share; the feed-forward width is what two or three matrices a layer have.
    """
    attention = set(counted.attention)
    matrices = [each for layer in counted.layers for each in layer.matrices]
    if len(attention) != 1 or not matrices:
        return None
    shape = attention.pop()
    if shape.num_queries != shape.num_keys:
        return None
    hidden = Counter(side for pair in matrices for side in set(pair)).most_common(1)[0][0]
    partners = Counter(
        rows if columns == hidden else columns for rows, columns in matrices if hidden in {rows, columns}
    )
    layers = len(counted.attention)
    ffn = _feed_forward(partners, layers, shape.head_size * shape.heads)
    if ffn is None:
        return None
    vocabulary = max((side for side, number in partners.items() if number < layers), default=1)
    tables = [pair for layer in counted.layers if layer.kind == "Embedding" for pair in layer.matrices]
    positions = sum(rows for rows, columns in tables if columns == hidden and rows != vocabulary)
    for kv_heads in _kv_heads(shape, partners, layers):
        try:
            found = Transformer(
                layers=layers,
                hidden=hidden,
                heads=shape.heads,
                kv_heads=kv_heads,
                head_size=shape.head_size,
                ffn_hidden=ffn[0],
                gated=ffn[1],
                vocabulary=vocabulary,
                tied_embeddings=partners[vocabulary] == 1,
                causal=shape.is_causal,
                position_embeddings=positions,
            )
        except SpecError:
            continue
        if _agrees(found, counted, shape.num_queries):
            return found
    return None


def adapter_rank(counted: "Counted") -> int | None:
    """The rank of the adapters that are trained in place of the weights; None where most weights are trained.

    Assumes an adapter is a pair of matrices with the rank between them (Hu et al. 2021).
    """
    if counted.trainable_params * 2 > counted.params:
        return None
    sides = Counter(
        min(pair) for layer in counted.layers if layer.trainable_params for pair in layer.matrices
    )
    if not sides:
        return None
    rank, number = sides.most_common(1)[0]
    return rank if number > 1 else None


def embeds(counted: "Counted", vocabulary: int) -> bool:
    """Whether a table of so many rows turns tokens into vectors."""
    tables = [pair for layer in counted.layers if layer.kind == "Embedding" for pair in layer.matrices]
    return any(rows == vocabulary for rows, _ in tables)


def _kv_heads(shape: "AttentionShape", partners: Counter[int], layers: int) -> Iterator[int]:
    """How many heads keys and values may have: as attention got them, or before they were repeated for it."""
    yield shape.kv_heads
    for kv_heads in range(shape.kv_heads - 1, 0, -1):
        if partners[kv_heads * shape.head_size] >= layers:
            yield kv_heads


def _feed_forward(partners: Counter[int], layers: int, attended: int) -> tuple[int, bool] | None:
    """The width of the feed-forward blocks and whether they are gated, the widest first."""
    for width in sorted(partners, reverse=True):
        number = partners[width]
        if width == attended:
            continue
        if number in {2 * layers, 3 * layers}:
            return width, number == 3 * layers
        if number == layers and partners[2 * width] == layers:
            return width, True  # gate and up in one matrix
    return None


def _agrees(found: Transformer, counted: "Counted", sequence: int) -> bool:
    """Whether the sizes give the weights and the FLOP that were counted, adapters and all."""
    flop = sequence * found.forward_flop_per_token(sequence)
    return (
        abs(found.params / counted.params - 1) <= TOLERANCE
        and abs(flop / counted.forward_flop_per_sample - 1) <= TOLERANCE
    )
