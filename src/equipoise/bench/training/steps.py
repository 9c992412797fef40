"""Training steps of the methods, which exchange gradients at every update or average weights periodically."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from equipoise.bench.training import MethodSetup


class TrainingStep:
    """Trains a module on batches; updates every `num_accumulated` runs and exchanges every `period` runs."""

    def __init__(
        self,
        setup: MethodSetup,
        module: nn.Module | None = None,
        *,
        num_accumulated: int = 1,
        exchange: Callable[[], None] | None = None,
        exchange_every: int = 1,
        hook_state: Any = None,  # noqa: ANN401 - torch's, or a Sparsifier
    ) -> None:
        """module: the wrapped model; None for the model itself. exchange: called after updates.

        hook_state: the state that a communication hook keeps between steps.
        """
        self.hook_state = hook_state
        self._trainee = setup.trainee
        self.module = setup.trainee.model if module is None else module
        self.optimizer = _optimizer(setup)
        self.period = num_accumulated * exchange_every
        self.marks: list[Callable[[str], None]] = []
        self._loss = setup.trainee.loss
        self._is_plain = num_accumulated == 1 and exchange is None
        self._num_accumulated = num_accumulated
        self._exchange = exchange
        self._num_runs = 0

    def run(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Run forward and backward, and update and exchange if due; return the batch's loss on this rank."""
        if self._is_plain and not self.marks:
            # Kept minimal, because each further call would slow a step of a millisecond by 1 %.
            loss = self._loss(self.module, batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            return loss
        return self._run(batch)

    def _run(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Run a step with marks, gradient accumulation or exchanges."""
        self._num_runs += 1
        updates = self._num_runs % self._num_accumulated == 0
        # Only the last of the accumulated backward passes communicates, with the sum of all gradients.
        synchronisation: Any = nullcontext() if updates else self.module.no_sync()
        with synchronisation:
            self._mark("forward")
            loss = self._loss(self.module, batch)
            self._mark("backward")
            # Dividing by one would slow a short step by a percent.
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
        """Return copies of every weight and buffer, unsharded, by name in the unwrapped model."""
        state = self._trainee.model.state_dict()
        return {name: whole(tensor.detach()).clone() for name, tensor in state.items()}

    def close(self) -> None:
        """End with equal weights on all ranks; gradients of an unfinished cycle are dropped."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._exchange is not None and self._num_runs % self.period:
            self._exchange()
        self.marks.clear()

    def _mark(self, phase: str) -> None:
        for mark in self.marks:
            mark(phase)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, gathered if it is sharded."""
    gathered = getattr(tensor, "full_tensor", None)
    return tensor if gathered is None else gathered()


def _optimizer(setup: MethodSetup) -> torch.optim.Optimizer:
    settings = setup.trainee.settings
    trained = [each for each in setup.trainee.model.parameters() if each.requires_grad]
    if settings.name == "adamw":
        return torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        trained,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def start_equal(model: nn.Module) -> None:
    """Broadcast the weights and buffers of rank 0, as DistributedDataParallel does by itself."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, src=0)


def begin_single(setup: MethodSetup) -> TrainingStep:
    """Return a step without communication."""
    return TrainingStep(setup)


def begin_ddp(setup: MethodSetup) -> TrainingStep:
    """Return a step that averages gradients. The argument is the bucket size in MiB (None: default)."""
    module = DistributedDataParallel(
        setup.trainee.model, bucket_cap_mb=setup.argument, static_graph=setup.name == "static_graph"
    )
    return TrainingStep(setup, module)


def begin_accumulate(setup: MethodSetup) -> TrainingStep:
    """Return a step that averages gradients and updates in every `argument`-th run."""
    module = DistributedDataParallel(setup.trainee.model)
    return TrainingStep(
        setup,
        module,
        num_accumulated=int(setup.argument or 1),
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the model's outermost module lists, which are the units of sharding."""
    stacks = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    nested = {inner for stack in stacks for inner in stack.modules() if inner is not stack}
    return [
        block
        for stack in stacks
        if stack not in nested
        for block in stack
        if any(True for _ in block.parameters())
    ]


def begin_fsdp(setup: MethodSetup) -> TrainingStep:
    """Return a step on sharded weights; each of `blocks` is a unit, and so is the rest of the model."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - new in torch 2.6

    model = setup.trainee.model
    start_equal(model)
    device: torch.device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (setup.world_size,))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return TrainingStep(setup)


_DTYPE = {"fp16": torch.float16, "bf16": torch.bfloat16}


def begin_rounded(setup: MethodSetup) -> TrainingStep:
    """Return a step that communicates gradients in the data type `name`."""
    module = DistributedDataParallel(setup.trainee.model)
    dtype = _DTYPE[setup.name]

    # torch's own bf16 hook requires CUDA, although gloo can sum bfloat16; this hook serves both types.
    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        # Divided before the sum, as in torch, because a sum over many ranks could exceed float16's 65,504.
        sent = gradient.div(setup.world_size).to(dtype)
        summing = dist.all_reduce(sent, async_op=True).get_future()

        def restored(_done: object) -> torch.Tensor:
            gradient.copy_(sent)
            received: torch.Tensor = gradient
            return received

        return summing.then(restored)

    module.register_comm_hook(None, hook)
    return TrainingStep(setup, module)


# The callbacks of torch's hook wait for further all-reduces on gloo's own threads, so several buckets in
# flight can deadlock. A single bucket avoids that, at the cost of no overlap.
_ONE_BUCKET_MIB = 100_000

# The first steps are not compressed: buckets are rebuilt after the first, and error feedback is per bucket.
NUM_WHOLE_STEPS = 2


def begin_powersgd(setup: MethodSetup) -> TrainingStep:
    """Return a step that compresses gradients to matrices of rank `argument` (PowerSGD)."""
    one_bucket = _ONE_BUCKET_MIB if dist.get_backend() == "gloo" else None
    module = DistributedDataParallel(setup.trainee.model, bucket_cap_mb=one_bucket)
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=int(setup.argument or 1),
        start_powerSGD_iter=NUM_WHOLE_STEPS,
    )
    module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return TrainingStep(setup, module, hook_state=state)


def largest(corrected: torch.Tensor, num_sent: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return indices and values of the largest entries by magnitude, and the residual without them.

    corrected: (num_values,), a gradient plus the residual of earlier ones. The parts sum to it exactly.
    """
    places = torch.topk(corrected.abs(), num_sent, sorted=False).indices
    residual = corrected.clone()
    residual[places] = 0
    return places, corrected[places], residual


class Sparsifier:
    """A top-k communication hook with error feedback: the unsent residual of each bucket is kept."""

    def __init__(self, fraction: float, world_size: int) -> None:
        """fraction: of a bucket's values to send, 0..1; at least one value is sent."""
        self.unsent: dict[int, torch.Tensor] = {}
        self._fraction = fraction
        self._world_size = world_size
        self._num_steps = 0

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the averaged bucket."""
        gradient = bucket.buffer()
        whole = self._num_steps < NUM_WHOLE_STEPS
        self._num_steps += bucket.is_last()
        return self._averaged(gradient) if whole else self._sparse(gradient, bucket.index())

    def _averaged(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        gradient.div_(self._world_size)
        summing = dist.all_reduce(gradient, async_op=True).get_future()
        return summing.then(lambda _done: gradient)

    def _sparse(self, gradient: torch.Tensor, index: int) -> torch.futures.Future[torch.Tensor]:
        corrected = gradient.float()
        if index in self.unsent:
            corrected = corrected + self.unsent[index]
        num_sent = max(1, math.ceil(self._fraction * corrected.numel()))
        places, values, self.unsent[index] = largest(corrected, num_sent)
        # Indices and values are sent in one message, so that an exchange incurs one latency instead of two.
        sent = torch.cat((places.to(torch.int32), values.view(torch.int32)))
        received = torch.empty(self._world_size * sent.numel(), dtype=torch.int32, device=sent.device)
        gathering = dist.all_gather_into_tensor(received, sent, async_op=True).get_future()

        def added(_done: object) -> torch.Tensor:
            total = torch.zeros_like(corrected)
            for part in received.view(self._world_size, 2, num_sent):
                total.index_add_(0, part[0].long(), part[1].view(torch.float32))
            averaged: torch.Tensor = gradient.copy_(total.div_(self._world_size))
            return averaged

        return gathering.then(added)


def begin_topk(setup: MethodSetup) -> TrainingStep:
    """Return a step that sends the fraction `argument` of its gradients' values."""
    module = DistributedDataParallel(setup.trainee.model)
    sparsifier = Sparsifier(float(setup.argument or 1.0), setup.world_size)
    module.register_comm_hook(None, sparsifier.hook)
    return TrainingStep(setup, module, hook_state=sparsifier)


def drifting(model: nn.Module) -> list[torch.Tensor]:
    """Return the tensors that diverge between independent ranks: trained weights and real-valued buffers."""
    weights = [each.data for each in model.parameters() if each.requires_grad]
    return [*weights, *(each for each in model.buffers() if each.is_floating_point())]


def average(tensors: Iterable[torch.Tensor], world_size: int, *, dtype: torch.dtype = torch.float32) -> None:
    """Replace each tensor by its mean over the ranks, in one message. dtype: lowest precision of the sum."""
    tensors = list(tensors)
    sizes = [each.numel() for each in tensors]
    flat = torch.cat([each.reshape(-1).to(torch.promote_types(each.dtype, dtype)) for each in tensors])
    dist.all_reduce(flat)
    for tensor, mean in zip(tensors, flat.div_(world_size).split(sizes), strict=True):
        tensor.copy_(mean.view_as(tensor))


def average_changes(tensors: Sequence[torch.Tensor], agreed: Sequence[torch.Tensor], world_size: int) -> None:
    """Set `tensors` and `agreed` to `agreed` plus the ranks' mean change.

    agreed: the values that are equal on all ranks. Changes are sent as float16, which rounds up to 2^-11 of a
    change rather than of a weight. Every rank adds the same numbers to equal values, so they stay bitwise
    equal.
    """
    changes = [tensor - old for tensor, old in zip(tensors, agreed, strict=True)]
    # Divided before the sum, because a sum over many ranks could exceed float16's 65,504.
    flat = torch.cat([each.reshape(-1) for each in changes]).div_(world_size).half()
    dist.all_reduce(flat)
    means = flat.split([each.numel() for each in changes])
    for tensor, old, mean in zip(tensors, agreed, means, strict=True):
        tensor.copy_(old.add_(mean.view_as(old)))


class Averaging:
    """Averages the tensors that diverge between independent ranks; methods named *_fp16 send float16."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """Assumes that the model is currently equal on all ranks."""
        self.tensors = drifting(model)
        self._world_size = world_size
        self._agreed = [each.clone() for each in self.tensors] if name.endswith("_fp16") else []

    def run(self) -> None:
        """Replace the tensors by their mean."""
        if self._agreed:
            average_changes(self.tensors, self._agreed, self._world_size)
        else:
            average(self.tensors, self._world_size)

    def restart(self) -> None:
        """Set the agreed values to the current tensors, which must be equal on all ranks."""
        for old, now in zip(self._agreed, self.tensors, strict=False):
            old.copy_(now)


# Douillard et al. 2023, table 5: Nesterov momentum 0.9 and learning rate 0.7 performed best.
OUTER_LEARNING_RATE = 0.7
OUTER_MOMENTUM = 0.9


class OuterStep:
    """DiLoCo's outer optimizer: updates the agreed weights by the ranks' mean change."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """Assumes that the model is currently equal on all ranks."""
        self._averaging = Averaging(name, model, world_size)
        self._trained = [each.data for each in model.parameters() if each.requires_grad]
        self._agreed = [each.clone() for each in self._trained]
        self._optimizer = torch.optim.SGD(
            self._agreed, lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )

    def run(self) -> None:
        """Run one outer step, after which every rank has the same weights."""
        self._averaging.run()
        for agreed, mean in zip(self._agreed, self._trained, strict=True):
            agreed.grad = agreed - mean
        self._optimizer.step()
        for agreed, weight in zip(self._agreed, self._trained, strict=True):
            weight.copy_(agreed)
        self._averaging.restart()


def begin_local(setup: MethodSetup) -> TrainingStep:
    """Return a local step, which in every `argument`-th run ends with an average or an outer step.

    Momentum is local to each rank. For diloco, the step's optimizer is the inner one.
    """
    start_equal(setup.trainee.model)
    kind = OuterStep if setup.name.startswith("diloco") else Averaging
    exchange = kind(setup.name, setup.trainee.model, setup.world_size)
    return TrainingStep(setup, exchange=exchange.run, exchange_every=int(setup.argument or 1))
