"""A trainee on a device and in a precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from equipoise.bench.models import Trainee


def moved(batch: Any, place: torch.device) -> Any:  # noqa: ANN401 - a tensor, tuple or dict
    """The batch with its tensors on that device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(place)
    if isinstance(batch, dict):
        return {name: moved(value, place) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(moved(value, place) for value in batch)
    return batch


def placed(subject: Trainee, place: torch.device) -> Trainee:
    """The trainee with its model there, and every batch copied there when it is asked for."""
    if place.type == "cpu":
        return subject
    return replace(
        subject,
        model=subject.model.to(place),
        batches=(moved(batch, place) for batch in subject.batches),
        held_out=moved(subject.held_out, place),
    )


def arithmetic(precision: str, place: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """What a forward pass and its loss run within to compute in that precision."""
    if precision == "bf16":
        return lambda: torch.autocast(place.type, dtype=torch.bfloat16)
    return nullcontext


def in_precision(subject: Trainee, precision: str, place: torch.device) -> Trainee:
    """The trainee with its forward pass and loss in that precision."""
    if precision != "bf16":
        return subject
    within = arithmetic(precision, place)

    def loss(model: Any, batch: Any) -> Any:  # noqa: ANN401 - torch is not followed
        with within():
            return subject.loss(model, batch)

    return replace(subject, loss=loss)
