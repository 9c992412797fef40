"""What a count of a torch model states: plain numbers, no torch. How they are found is in step.py."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from equipoise.errors import SpecError
from equipoise.spec.torch_model.recognise import adapter_rank, embeds, transformer_sizes
from equipoise.spec.workload import Workload

LayerFigure: TypeAlias = Literal[
    "params", "forward_flop", "backward_flop", "activation_bytes", "moved_bytes", "num_kernels"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCount:
    """What one module does itself, its submodules not counted.

    name: as in `named_modules`; "" is the model itself, "(loss)" the loss.
    params: weights the module holds itself; a tied weight belongs to the first module that has it.
    activation_bytes: kept for the backward pass and first kept here.
    moved_bytes: read and written by operations without matrix products, both passes.
    num_kernels: operations that write memory, both passes.
    matrices: rows and columns of its weights that are matrices.
    """

    name: str
    kind: str
    params: int
    trainable_params: int
    forward_flop: int
    backward_flop: int
    activation_bytes: int
    moved_bytes: int
    num_kernels: int
    matrices: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One call of attention on the way forward; key and value have kv_heads, shared by groups of heads."""

    heads: int
    kv_heads: int
    head_size: int
    num_queries: int
    num_keys: int
    is_causal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Gradients that data parallel training reduces in one call.

    ready_fraction: share of the FLOP of the backward pass done when the last of them exists, 0..1.
    """

    grad_bytes: int
    num_tensors: int
    ready_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A place where the forward pass could be cut in two, between one module's work and the next's.

    flop_fraction: share of the FLOP of the forward pass before the cut, 0..1.
    boundary_bytes: results of the batch computed before the cut and still needed after it.
    """

    after: str
    flop_fraction: float
    boundary_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one training step of a model on one example batch asks for, the optimizer not counted.

    value_bytes: of a number in the dtype that most weights have.
    params_by_dtype: pairs of dtype and number of weights, e.g. ("bfloat16", 8030261248).
    backward_flop: includes recompute_flop, what activation checkpoints compute again.
    activation_bytes: kept from the forward for the backward pass, each storage once, weights not counted.
    fixed_activation_bytes: the part of them made without the batch, such as masks and tables.
    peak_bytes: most bytes alive at once in both passes, gradients included; weights, buffers, batch are not.
    uncounted: operations that are not torch's own and have no FLOP formula; their FLOP are missing.
    unused_params: trainable weights that got no gradient; data parallel training stops at them unless told.
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
    moved_bytes: int
    num_forward_kernels: int
    num_backward_kernels: int
    layers: tuple[LayerCount, ...]
    attention: tuple[AttentionShape, ...]
    cuts: tuple[Cut, ...]
    buckets: tuple[GradientBucket, ...]
    unused_params: tuple[str, ...]
    uncounted: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse a batch without samples."""
        if self.num_samples < 1:
            raise SpecError(f"counted: num_samples={self.num_samples}; expected a batch of at least 1")

    @property
    def forward_flop_per_sample(self) -> float:
        """FLOP of one sample's way forward."""
        return self.forward_flop / self.num_samples

    @property
    def train_flop_per_sample(self) -> float:
        """FLOP of one sample's way forward and backward, nothing computed twice."""
        return (self.forward_flop + self.backward_flop - self.recompute_flop) / self.num_samples

    @property
    def activation_bytes_per_sample(self) -> float:
        """Bytes kept for the backward pass by each further sample."""
        return (self.activation_bytes - self.fixed_activation_bytes) / self.num_samples

    @property
    def narrowest_cut(self) -> Cut | None:
        """The cut that fewest bytes cross, with a tenth of the FLOP or more on either side; None if none."""
        return min(self._inner_cuts(), key=lambda cut: cut.boundary_bytes, default=None)

    @property
    def stage_cut(self) -> Cut | None:
        """The widest cut that stages of a pipeline need; None where no cut leaves a tenth on either side.

        Wherever balance asks for a cut, the narrowest within a twentieth of the FLOP is taken.
        """
        places = (tenth / 10 for tenth in range(1, 10))
        near = (
            [cut for cut in self._inner_cuts() if abs(cut.flop_fraction - place) <= 0.05]  # noqa: PLR2004 - as said
            for place in places
        )
        narrowest = (min(cuts, key=lambda cut: cut.boundary_bytes) for cuts in near if cuts)
        return max(narrowest, key=lambda cut: cut.boundary_bytes, default=None)

    def largest_layers(self, by: LayerFigure, num_layers: int = 10) -> tuple[LayerCount, ...]:
        """The layers with the largest figure of a kind, largest first; those with none of it are left out."""
        ordered = sorted(self.layers, key=lambda layer: -int(getattr(layer, by)))
        return tuple(layer for layer in ordered[:num_layers] if getattr(layer, by))

    def workload(self, slug: str, title: str) -> Workload:
        """The workload of this model: its sizes where it is a plain transformer, and its figures a sample.

        A transformer that embeds a vocabulary is of the area language; of no other can a count tell the area.
        Activations and cuts are given as for 2 bytes a value, as every workload's are.
        """
        model = transformer_sizes(self)
        per_value = 2 / self.value_bytes
        stage = self.stage_cut
        rank = adapter_rank(self)
        return Workload(
            slug=slug,
            title=title,
            area="own" if model is None or not embeds(self, model.vocabulary) else "language",
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
            layers=sum(1 for layer in self.layers if layer.forward_flop),
            trained="full" if rank is None else "lora",
            lora_rank=rank,
        )

    def _inner_cuts(self) -> tuple[Cut, ...]:
        """Cuts with a tenth of the FLOP on both sides; stages of a pipeline hold less if there are many."""
        return tuple(cut for cut in self.cuts if 0.1 <= cut.flop_fraction <= 0.9)  # noqa: PLR2004 - as said
