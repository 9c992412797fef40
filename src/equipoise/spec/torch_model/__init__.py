"""Counts the figures of a `Workload` from a torch model and an example batch, without allocating memory."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from equipoise.errors import UsageError
from equipoise.spec.torch_model.count import Counted, Cut, GradientBucket, LayerCount
from equipoise.spec.torch_model.factory import Factory, load_factory

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = [
    "Counted",
    "Cut",
    "Factory",
    "GradientBucket",
    "LayerCount",
    "count",
    "count_function",
    "load_factory",
]


def count(
    model: "torch.nn.Module | Callable[[], torch.nn.Module]",
    example: Any,  # noqa: ANN401 - whatever the model takes
    *,
    loss: "Callable[..., torch.Tensor] | None" = None,
    num_samples: int | None = None,
) -> Counted:
    """Return the figures of one training step: weights, FLOP, activations, kernels, cuts, buckets.

    model: a module on any device, including the meta device, or a function that builds one; it is not
    changed. example: a tensor; a tuple of the model's arguments, with the target last if a loss is given; or
    a dict of its named arguments. Its first dim is the batch, unless num_samples states the number of
    samples. loss: called with the output and, for a tuple, the target, or for a dict, the dict. By default,
    the `loss` in the output is used, or the sum of all outputs.
    Raises SpecError if the model cannot be run without values; UsageError if torch is missing.
    Assumes accelerators' kernels: causal attention in one kernel that skips masked keys, byte masks.
    Source: torch.utils.flop_counter; torch.autograd.graph.saved_tensors_hooks; both on torch's fake tensors.
    """
    counted: Counted = _counting().count_model(model, example, loss=loss, num_samples=num_samples)
    return counted


def count_function(reference: str, *, allocate: bool = False) -> Counted:
    """Return the figures of `module:function`, a function that returns model, batch and optionally a loss.

    allocate: allow the function to allocate memory, if it needs the values of tensors.
    Raises SpecError and UsageError as `count` does. Each function is counted once per process.
    """
    return _counted(load_factory(reference), allocate=allocate)


@lru_cache(maxsize=16)
def _counted(factory: Factory, *, allocate: bool) -> Counted:
    counted: Counted = _counting().count_factory(factory, allocate=allocate)
    return counted


def _counting() -> Any:  # noqa: ANN401 - a module
    """Return the module that counts, imported on first use because it imports torch."""
    try:
        from equipoise.spec.torch_model import step  # noqa: PLC0415 - torch takes seconds
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        raise UsageError("counting a model needs torch: pip install 'equipoise[torch]'") from err
    return step
