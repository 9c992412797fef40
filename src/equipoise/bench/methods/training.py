"""The step that all methods share: forward, backward, update, and an exchange where one is due."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from equipoise.bench.methods.method import OptimizerSettings
from equipoise.bench.models import Trainee


class TrainingStep:
    """Runs batches through a module; every `num_accumulated` runs update, every `period` runs exchange."""

    def __init__(
        self,
        trainee: Trainee,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        num_accumulated: int = 1,
        exchange: Callable[[], None] | None = None,
        exchange_every: int = 1,
    ) -> None:
        """module: what is called, wrapped or bare. exchange: called after updates."""
        self.module = module
        self.optimizer = optimizer
        self.period = num_accumulated * exchange_every
        self.marks: list[Callable[[str], None]] = []
        self._trainee = trainee
        self._loss = trainee.loss
        self._is_plain = num_accumulated == 1 and exchange is None
        self._num_accumulated = num_accumulated
        self._exchange = exchange
        self._num_runs = 0

    def run(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The batch's loss on this rank, after forward, backward, and what of update and exchange is due."""
        if self._is_plain and not self.marks:
            # As anybody's loop: what else is called costs a step of a millisecond a percent.
            loss = self._loss(self.module, batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            return loss
        return self._run(batch)

    def _run(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """A step that is marked, or that does not do all there is."""
        self._num_runs += 1
        updates = self._num_runs % self._num_accumulated == 0
        # Only the last of the accumulated backward passes sends: it carries the sum of all.
        waiting: Any = nullcontext() if updates else self.module.no_sync()
        with waiting:
            self._mark("forward")
            loss = self._loss(self.module, batch)
            self._mark("backward")
            # Dividing by one would cost a short step a percent.
            (loss / self._num_accumulated if self._num_accumulated > 1 else loss).backward()
        if updates:
            self._mark("optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self._exchange is not None and self._num_runs % self.period == 0:
            self._mark("communication")
            self._exchange()
        self._mark("rest")
        return loss

    def weights(self) -> dict[str, torch.Tensor]:
        """Every weight and buffer, whole, under its name in the bare model."""
        state = self._trainee.model.state_dict()
        return {name: whole(tensor.detach()).clone() for name, tensor in state.items()}

    def close(self) -> None:
        """Ends with equal weights on all ranks; gradients of an unfinished cycle are dropped."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._exchange is not None and self._num_runs % self.period:
            self._exchange()
        self.marks.clear()

    def _mark(self, phase: str) -> None:
        for mark in self.marks:
            mark(phase)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered if it is sharded."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def optimizer(settings: OptimizerSettings, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of the weights that are trained."""
    trained = [each for each in parameters if each.requires_grad]
    if settings.name == "adamw":
        return torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        trained,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def start_equal(model: nn.Module) -> None:
    """Gives every rank the weights and buffers of rank 0, as DistributedDataParallel does by itself."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, src=0)
