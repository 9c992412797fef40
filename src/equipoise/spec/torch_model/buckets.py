"""Gradients grouped as data parallel training reduces them. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from equipoise.spec.torch_model.counted import GradientBucket
from equipoise.units import MIB

FIRST_BUCKET_BYTES = MIB
BUCKET_BYTES = 25 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of one weight, in the order in which they come to exist."""

    grad_bytes: int
    dtype: str
    ready_fraction: float


def gradient_buckets(
    gradients: Iterable[Gradient],
    *,
    first_bytes: float = FIRST_BUCKET_BYTES,
    bucket_bytes: float = BUCKET_BYTES,
) -> tuple[GradientBucket, ...]:
    """The buckets that DistributedDataParallel forms after its first step, in the order they fill.

    Each dtype fills its own; one that has reached its limit is closed, so a large weight may overfill it.
    first_bytes, bucket_bytes: the limit of the first of a dtype, and of the others; torch's own by default.
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
    """The bucket that holds these gradients."""
    return GradientBucket(
        grad_bytes=sum(gradient.grad_bytes for gradient in gradients),
        num_tensors=len(gradients),
        ready_fraction=max(gradient.ready_fraction for gradient in gradients),
    )
