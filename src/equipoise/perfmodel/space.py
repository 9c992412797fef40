"""What may be chosen of each knob of a strategy: the space that a search goes through."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from equipoise.errors import SpecError
from equipoise.spec.strategy import RECOMPUTES, Strategy

Value: TypeAlias = int | str | bool
Combinations: TypeAlias = tuple[tuple[Value, ...], ...]
AXES = ("dp", "tp", "pp", "cp", "ep")
# Places: how ranks share samples out. Layers: what changes a layer's time. States: what does not.
PLACE_KNOBS = (*AXES, "microbatch_samples", "global_batch_samples")
LAYER_KNOBS = (
    "sequence_parallel",
    "tp_overlap",
    "recompute",
    "fused_attention",
    "fused_loss",
    "precision",
    "implementation",
)
STATE_KNOBS = (
    "interleave",
    "shard_state",
    "optimizer",
    "offload",
    "compression",
    "compression_rank",
    "sync_period",
    "trained",
    "lora_rank",
)
# What a search tries unless told otherwise: what leaves the trained model as it is, all on the accelerator.
# Attention and loss are fused and layers compiled: each is only ever faster, and neither changes a result.
USUAL: Mapping[str, tuple[Value, ...]] = {
    "sequence_parallel": (False, True),
    "tp_overlap": (False, True),
    "recompute": RECOMPUTES,
    "fused_attention": (True,),
    "fused_loss": (True,),
    "precision": ("bf16",),
    "implementation": ("compiled",),
    "shard_state": (0, 1, 2, 3),
    "optimizer": ("adam",),
    "offload": ("none",),
    "compression": ("none",),
    "compression_rank": (0,),
    "sync_period": (1,),
    "trained": ("full",),
    "lora_rank": (0,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be chosen: so many accelerators, global batches, and values a knob.

    choices: by field of `Strategy`, the values allowed, over USUAL; axes, microbatch_samples and interleave
    are free unless named: every value that the model, the batch and the accelerators allow.
    """

    num_accelerators: int
    global_batches: tuple[int, ...]
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse spaces that hold nothing whatever the model."""
        if self.num_accelerators < 1 or not self.global_batches or min(self.global_batches) < 1:
            raise SpecError(
                f"space: num_accelerators={self.num_accelerators}, global_batches={self.global_batches}; "
                "expected at least one accelerator, and global batches of at least one sample"
            )
        known = {each.name for each in fields(Strategy)} - {"global_batch_samples"}
        for name, values in self.choices.items():
            if name not in known or not values:
                raise SpecError(f"space: {name}={values!r}; expected values of a knob of a strategy")

    def allows(self, name: str, value: Value) -> bool:
        """Whether a free knob may take a value."""
        return name not in self.choices or value in self.choices[name]

    def values(self, name: str) -> tuple[Value, ...]:
        """The values of a knob that is not free."""
        return self.choices.get(name, USUAL[name])
