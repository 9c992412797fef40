"""A `Workload`'s figures from a torch model and an example batch, without memory for either."""

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
    """The figures of one training step: weights, FLOP, activations, kernels, cuts, buckets.

    model: a module on any device, the meta device included, or a function that builds one; it is not changed.
    example: a tensor; a tuple of the model's arguments, with the target last if a loss is given; or a dict of
    its named arguments. Its first dim is the batch, unless num_samples states how many samples it holds.
    loss: called with the output and, of a tuple, the target, or of a dict, the dict. Without it the `loss`
    of the output is taken, or the sum of all outputs.
    Raises SpecError where the model cannot be run without values; UsageError if torch is missing.
    Assumes accelerators' kernels: causal attention in one that skips what it may not see, byte masks.
    Source: torch.utils.flop_counter; torch.autograd.graph.saved_tensors_hooks; both on torch's fake tensors.
    """
    counted: Counted = _counting().count_model(model, example, loss=loss, num_samples=num_samples)
    return counted


def count_function(reference: str, *, allocate: bool = False) -> Counted:
    """The figures of `module:function`, a user's function that returns model, batch and perhaps a loss.

    allocate: let the function take real memory, for one that needs the values of tensors.
    Raises SpecError, UsageError as `count` does. The same function is counted once a process.
    """
    return _counted(load_factory(reference), allocate=allocate)


@lru_cache(maxsize=16)
def _counted(factory: Factory, *, allocate: bool) -> Counted:
    counted: Counted = _counting().count_factory(factory, allocate=allocate)
    return counted


def _counting() -> Any:  # noqa: ANN401 - a module
    """The module that counts, loaded when first needed: it imports torch."""
    try:
        from equipoise.spec.torch_model import step  # noqa: PLC0415 - torch takes seconds
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        raise UsageError("counting a model needs torch: pip install 'equipoise[torch]'") from err
    return step
