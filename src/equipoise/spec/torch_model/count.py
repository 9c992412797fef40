"""The counts of a torch model: FLOP, parameters, gradient buckets, and sizes of a transformer. No torch."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError, UsageError
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import Workload
from equipoise.units import MIB, format_count

LayerFigure: TypeAlias = Literal["params", "forward_flop", "backward_flop", "activation_bytes", "num_kernels"]


class LayerCount(Struct, frozen=True, kw_only=True):
    """The counts of one module without its submodules.

    name: as in `named_modules`; "" is the model itself, "(loss)" the loss.
    params: the module's own weights; a tied weight belongs to the first module that has it.
    activation_bytes: saved for the backward pass, and first saved by this module.
    num_kernels: operations that write memory, in both passes.
    matrices: rows and columns of its weight matrices.
    """

    name: str
    kind: str
    params: int
    trainable_params: int
    forward_flop: int
    backward_flop: int
    activation_bytes: int
    num_kernels: int
    matrices: tuple[tuple[int, int], ...] = ()


class AttentionShape(Struct, frozen=True, kw_only=True):
    """One forward attention call; key and value have kv_heads, each shared by a group of query heads."""

    heads: int
    kv_heads: int
    head_size: int
    num_queries: int
    num_keys: int
    is_causal: bool


class GradientBucket(Struct, frozen=True, kw_only=True):
    """Gradients that data parallel training reduces in one call.

    ready_fraction: fraction of backward FLOP done when the last of them is ready, 0..1.
    """

    grad_bytes: int
    num_tensors: int
    ready_fraction: float


class Cut(Struct, frozen=True, kw_only=True):
    """A position between two modules where the forward pass could be split.

    flop_fraction: fraction of forward FLOP before the cut, 0..1.
    boundary_bytes: results that depend on the batch, are computed before the cut and are needed after it.
    """

    after: str
    flop_fraction: float
    boundary_bytes: int


class Counted(Struct, frozen=True, kw_only=True):
    """The counts of one training step of a model on one example batch, without the optimizer.

    value_bytes: per number in the dtype of most weights.
    params_by_dtype: pairs of dtype and number of weights, e.g. ("bfloat16", 8030261248).
    backward_flop: includes recompute_flop, the recomputation of activation checkpoints.
    activation_bytes: saved in the forward pass for the backward pass, each storage once, without weights.
    fixed_activation_bytes: the part of them that does not depend on the batch, such as masks and tables.
    peak_bytes: peak bytes in both passes, with gradients, without weights, buffers and batch.
    num_repeated_products: forward products whose weight matrix was used before; in a recurrent layer, one per
    time step after the first.
    uncounted: operations that are not torch's own and have no FLOP formula; their FLOP are missing.
    """

    num_samples: int
    params: int
    trainable_params: int
    buffer_bytes: int
    value_bytes: int
    params_by_dtype: tuple[tuple[str, int], ...]
    forward_flop: int
    backward_flop: int
    recompute_flop: int
    activation_bytes: int
    fixed_activation_bytes: int
    peak_bytes: int
    num_forward_kernels: int
    num_backward_kernels: int
    num_repeated_products: int
    layers: tuple[LayerCount, ...]
    attention: tuple[AttentionShape, ...]
    cuts: tuple[Cut, ...]
    buckets: tuple[GradientBucket, ...]
    uncounted: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise SpecError for a batch without samples."""
        if self.num_samples < 1:
            raise SpecError(f"counted: num_samples={self.num_samples}; expected a batch of at least 1")

    @property
    def forward_flop_per_sample(self) -> float:
        """Forward FLOP per sample."""
        return self.forward_flop / self.num_samples

    @property
    def train_flop_per_sample(self) -> float:
        """FLOP per sample of forward and backward pass, without recomputation."""
        return (self.forward_flop + self.backward_flop - self.recompute_flop) / self.num_samples

    @property
    def activation_bytes_per_sample(self) -> float:
        """Bytes saved for the backward pass per additional sample."""
        return (self.activation_bytes - self.fixed_activation_bytes) / self.num_samples

    @property
    def narrowest_cut(self) -> Cut | None:
        """The cut with the fewest boundary bytes that has a tenth of the FLOP on either side, or None."""
        return min(self._inner_cuts(), key=lambda cut: cut.boundary_bytes, default=None)

    @property
    def stage_cut(self) -> Cut | None:
        """The widest cut that pipeline stages need; None if no cut has a tenth of the FLOP on either side.

        At each tenth of the FLOP, the narrowest cut within a twentieth is used.
        """
        fractions = (tenth / 10 for tenth in range(1, 10))
        near = (
            [cut for cut in self._inner_cuts() if abs(cut.flop_fraction - fraction) <= 0.05]  # noqa: PLR2004 - see the docstring
            for fraction in fractions
        )
        narrowest = (min(cuts, key=lambda cut: cut.boundary_bytes) for cuts in near if cuts)
        return max(narrowest, key=lambda cut: cut.boundary_bytes, default=None)

    def largest_layers(self, by: LayerFigure, num_layers: int = 10) -> tuple[LayerCount, ...]:
        """Return the layers with the largest values of a figure, largest first, without zeros.

        Raises UsageError for an unknown figure.
        """
        if by not in get_args(LayerFigure):
            expected = ", ".join(get_args(LayerFigure))
            raise UsageError(f"by is {str(by)[:40]!r}; expected one of {expected}")
        ordered = sorted(self.layers, key=lambda layer: -int(getattr(layer, by)))
        return tuple(layer for layer in ordered[:num_layers] if getattr(layer, by))

    def workload(self, slug: str, title: str) -> Workload:
        """Return the workload of this model: figures per sample, and sizes if it is a plain transformer.

        The area of a transformer that embeds a vocabulary is `language`, otherwise `other`.
        Activations and cuts are for 2 bytes per value, as in every workload. If weights are frozen, parts
        that gradients do not pass through are treated as forward-only.
        Raises SpecError if no weight is trained.
        """
        if not self.trainable_params:
            raise SpecError(
                f"{slug}: none of its {format_count(self.params)} weights is trained; "
                "expected a model with weights that require gradients"
            )
        model = transformer_sizes(self)
        per_value = 2 / self.value_bytes
        stage = self.stage_cut
        rank = adapter_rank(self)
        found = Workload(
            slug=slug,
            title=title,
            area="other" if model is None or not embeds(self, model.vocabulary) else "language",
            source="counted on the model itself",
            params=float(self.params),
            transformer=model,
            sequence_tokens=None if model is None else self.attention[0].num_queries,
            forward_flop_per_sample=self.forward_flop_per_sample,
            backward_flop_per_sample=self.train_flop_per_sample - self.forward_flop_per_sample,
            activation_bytes_per_sample=self.activation_bytes_per_sample * per_value,
            boundary_bytes_per_sample=None
            if stage is None
            else stage.boundary_bytes / self.num_samples * per_value,
            layers=(layers := sum(1 for layer in self.layers if layer.forward_flop)),
            products_per_layer=1.0 + self.num_repeated_products / max(1, layers),
            trained="full" if rank is None else "lora",
            lora_rank=rank,
        )
        return found if rank is not None else self._with_frozen(found)

    def _with_frozen(self, found: Workload) -> Workload:
        """Return the workload with its frozen weights as a forward-only part.

        Assumes that the backward pass takes twice the FLOP of the forward pass, and that gradients pass
        through at least one layer.
        """
        forward, backward = found.forward_flop_per_sample, found.backward_flop_per_sample
        if not forward or backward is None or not found.layers:
            return found
        if max(self.trainable_params / self.params, backward / (2 * forward)) >= 1 - TOLERANCE:
            return found
        trained = min(forward, max(backward / 2, forward / found.layers))
        return replace(
            found,
            area="other",
            transformer=None,
            sequence_tokens=None,
            params=float(self.trainable_params),
            forward_flop_per_sample=trained,
            layers=max(1, round(found.layers * trained / forward)),
            frozen_share=forward / trained - 1,
            frozen_params=float(self.params - self.trainable_params),
        )

    def _inner_cuts(self) -> tuple[Cut, ...]:
        """Return the cuts with at least a tenth of the FLOP on both sides."""
        return tuple(cut for cut in self.cuts if 0.1 <= cut.flop_fraction <= 0.9)  # noqa: PLR2004 - see the docstring


# Inferred sizes are used only if their weights and FLOP equal the counted ones within this relative
# tolerance.
TOLERANCE = 0.03


def transformer_sizes(counted: "Counted") -> Transformer | None:
    """Return the sizes of a plain transformer; None if the model is not one, or sizes do not describe it.

    Each layer must have one self-attention, and all must have the same sizes. The hidden size is the one that
    most matrices share; the feed-forward width is the one that two or three matrices per layer have.
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
    positions = sum(rows for rows, columns in _tables(counted) if columns == hidden and rows != vocabulary)
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
    """Return the rank of the trained adapters; None if most weights are trained.

    Assumes an adapter is a pair of matrices with the rank between them (Hu et al. 2021), which is not a
    dimension of any frozen matrix.
    """
    if counted.trainable_params * 2 > counted.params:
        return None
    sides = Counter(
        min(pair) for layer in counted.layers if layer.trainable_params for pair in layer.matrices
    )
    if not sides:
        return None
    rank, number = sides.most_common(1)[0]
    frozen = (pair for layer in counted.layers if not layer.trainable_params for pair in layer.matrices)
    return rank if number > 1 and all(rank not in pair for pair in frozen) else None


def embeds(counted: "Counted", vocabulary: int) -> bool:
    """Return whether there is an embedding table with this number of rows."""
    return any(rows == vocabulary for rows, _ in _tables(counted))


def _tables(counted: "Counted") -> list[tuple[int, int]]:
    """Return rows and columns of the embedding tables."""
    return [pair for layer in counted.layers if layer.kind == "Embedding" for pair in layer.matrices]


def _kv_heads(shape: "AttentionShape", partners: Counter[int], layers: int) -> Iterator[int]:
    """Yield candidates for the number of key heads: as in attention, or before keys were repeated for it."""
    yield shape.kv_heads
    for kv_heads in range(shape.kv_heads - 1, 0, -1):
        if partners[kv_heads * shape.head_size] >= layers:
            yield kv_heads


def _feed_forward(partners: Counter[int], layers: int, attended: int) -> tuple[int, bool] | None:
    """Return the width of the feed-forward blocks and whether they are gated, trying the widest first."""
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
    """Return whether the sizes result in the counted weights and FLOP, including adapters."""
    flop = sequence * found.forward_flop_per_token(sequence)
    return (
        abs(found.params / counted.params - 1) <= TOLERANCE
        and abs(flop / counted.forward_flop_per_sample - 1) <= TOLERANCE
    )


FIRST_BUCKET_BYTES = MIB
BUCKET_BYTES = 25 * MIB


class Gradient(Struct, frozen=True, kw_only=True):
    """The gradient of one weight; gradients are ordered by when they are ready."""

    grad_bytes: int
    dtype: str
    ready_fraction: float


def gradient_buckets(
    gradients: Iterable[Gradient],
    *,
    first_bytes: float = FIRST_BUCKET_BYTES,
    bucket_bytes: float = BUCKET_BYTES,
) -> tuple[GradientBucket, ...]:
    """Return the buckets that DistributedDataParallel forms after its first step, in the order they fill.

    Each dtype has its own buckets. A bucket is closed when it reaches its limit, which a large weight may
    exceed. first_bytes, bucket_bytes: limits of the first bucket of a dtype and of the others; torch's by
    default.
    Source: torch.distributed, compute_bucket_assignment_by_size; Li et al. 2020, section 4.2.

    >>> one = Gradient(grad_bytes=20 * 2**20, dtype="float32", ready_fraction=0.5)
    >>> [(bucket.grad_bytes // 2**20, bucket.num_tensors) for bucket in gradient_buckets([one] * 4)]
    [(20, 1), (40, 2), (20, 1)]
    """
    open_buckets: dict[str, list[Gradient]] = {}
    started: set[str] = set()
    closed: list[list[Gradient]] = []
    for gradient in gradients:
        bucket = open_buckets.setdefault(gradient.dtype, [])
        bucket.append(gradient)
        limit_bytes = bucket_bytes if gradient.dtype in started else first_bytes
        if sum(item.grad_bytes for item in bucket) >= limit_bytes:
            closed.append(open_buckets.pop(gradient.dtype))
            started.add(gradient.dtype)
    closed += open_buckets.values()
    return tuple(sorted((_bucket(items) for items in closed), key=lambda bucket: bucket.ready_fraction))


def _bucket(gradients: list[Gradient]) -> GradientBucket:
    """Return the bucket with these gradients."""
    return GradientBucket(
        grad_bytes=sum(gradient.grad_bytes for gradient in gradients),
        num_tensors=len(gradients),
        ready_fraction=max(gradient.ready_fraction for gradient in gradients),
    )
