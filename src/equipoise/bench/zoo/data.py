"""Batches from a pool of samples: real digits, random images and text, or a user's own batch."""

from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

import torch
from msgspec import Struct
from torch import nn

from equipoise.bench.zoo import Trainee
from equipoise.errors import SpecError
from equipoise.spec.torch_model import load_factory

# Random samples are drawn once and used again: what is measured is training, not the drawing of numbers.
NUM_RANDOM_SAMPLES = 64
HELD_OUT_EVERY = 5


class ZooParts(Struct, frozen=True, kw_only=True):
    """What a builder of the zoo returns; the first dim of each tensor of `pool` counts samples."""

    model: nn.Module
    pool: tuple[torch.Tensor, ...]
    loss: Callable[[Any, Any], torch.Tensor]
    held_out: tuple[torch.Tensor, ...] | None = None
    num_correct: Callable[[Any, Any], int] | None = None


def made_trainee(
    name: str,
    build: Callable[[], ZooParts] | None,
    *,
    batch_samples: int,
    seed: int,
    share: tuple[int, int],
) -> Trainee:
    """The trainee of a builder, or without one of the user's function `name`, for one rank.

    share: rank and number of ranks.
    """
    torch.manual_seed(seed)
    made = (
        _of_user(name, batch_samples, seed, share)
        if build is None
        else _of_zoo(build(), batch_samples, seed, share)
    )
    # Equal weights on every rank, but not equal dropout: ranks see different samples, and different masks.
    torch.manual_seed(seed + share[0])
    return made


def _of_zoo(made: ZooParts, batch_samples: int, seed: int, share: tuple[int, int]) -> Trainee:
    """The trainee of a builder's parts."""
    places = shuffled_places(len(made.pool[0]), batch_samples, seed=seed, share=share)
    return Trainee(
        model=made.model,
        batches=(tuple(tensor[rows] for tensor in made.pool) for rows in places),
        loss=made.loss,
        num_samples=lambda batch: len(batch[0]),
        held_out=made.held_out,
        num_correct=made.num_correct,
    )


def shuffled_places(
    num_samples: int, batch_samples: int, *, seed: int, share: tuple[int, int]
) -> Iterator[torch.Tensor]:
    """This rank's rows of one global batch after another, in an order that is the same on all ranks.

    Every sample is seen once before any is seen again; a batch may span two such rounds.
    """
    rank, num_ranks = share
    rows = batch_samples // num_ranks
    drawing = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < batch_samples:
            order = torch.cat((order, torch.randperm(num_samples, generator=drawing)))
        yield order[rank * rows : (rank + 1) * rows]
        order = order[batch_samples:]


def _of_user(reference: str, batch_samples: int, seed: int, share: tuple[int, int]) -> Trainee:
    """The trainee of a user's function.

    Its batch is repeated or cut to the rows needed. Where it holds a batch out, the other is what there is
    to train on, and batches are drawn from it.

    Raises SpecError if what it returns cannot be trained on.
    """
    model, batch, loss, held_out = load_factory(reference).made_with_held_out()
    tensors = _tensors(reference, batch)
    num_given = min(len(each) for each in tensors)
    rank, num_ranks = share
    rows = batch_samples // num_ranks
    places = torch.arange(rank * rows, (rank + 1) * rows) % num_given
    mine = rows_of(batch, places)
    drawn = shuffled_places(num_given, batch_samples, seed=seed, share=share)
    return Trainee(
        model=model,
        batches=repeat(mine) if held_out is None else (rows_of(batch, each) for each in drawn),
        loss=lambda module, given: _loss(reference, module, given, loss),
        num_samples=lambda given: min(len(each) for each in _tensors(reference, given)),
        held_out=held_out,
    )


def _tensors(reference: str, batch: object) -> list[torch.Tensor]:
    """The batch's tensors, each with samples in its first dim."""
    found: list[object]
    if isinstance(batch, dict):
        found = list(batch.values())
    else:
        found = list(batch) if isinstance(batch, tuple | list) else [batch]
    tensors = [each for each in found if isinstance(each, torch.Tensor) and each.ndim]
    if not tensors or min(len(each) for each in tensors) == 0:
        raise SpecError(
            f"{reference}: the second value is a {type(batch).__name__} without samples; "
            "expected a tensor, a tuple or a dict of tensors whose first dim is the batch"
        )
    return tensors


def rows_of(batch: Any, places: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor, tuple or dict
    """The samples of a batch at these places."""
    if isinstance(batch, dict):
        return {name: rows_of(value, places) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(rows_of(value, places) for value in batch)
    if isinstance(batch, torch.Tensor) and batch.ndim:
        return batch[places.to(batch.device)]
    return batch


def _loss(
    reference: str,
    module: nn.Module,
    batch: Any,  # noqa: ANN401 - a tensor, tuple or dict
    loss: Callable[..., torch.Tensor] | None,
) -> torch.Tensor:
    """The loss of a user's model, called as `spec.torch_model.count` calls it."""
    if isinstance(batch, dict):
        output = module(**batch)
        found = loss(output, batch) if loss else _loss_of_output(output)
    elif isinstance(batch, tuple):
        output = module(*batch[:-1]) if loss else module(*batch)
        found = loss(output, batch[-1]) if loss else _loss_of_output(output)
    else:
        output = module(batch)
        found = loss(output) if loss else _loss_of_output(output)
    if not isinstance(found, torch.Tensor) or found.ndim:
        raise SpecError(
            f"{reference}: the loss is a {type(found).__name__}; expected a tensor with one number: "
            "return model, batch, loss, or a model whose output has a loss"
        )
    return found


def _loss_of_output(output: Any) -> Any:  # noqa: ANN401 - whatever a model returns
    """The loss that a model's output holds, or None."""
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
