"""Steps of the methods: gradients exchanged every update, or weights averaged every so many steps."""

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
    """Runs batches through a module; every `num_accumulated` runs update, every `period` runs exchange."""

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
        """module: the model as it is called, where it is wrapped. exchange: called after updates.

        hook_state: what a communication hook keeps between steps.
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
        """The batch's loss on this rank, after forward, backward, and what of update and exchange is due."""
        if self._is_plain and not self.marks:
            # A plain loop: any further call costs a step of a millisecond 1 %.
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
        """Every weight and buffer, whole, under its name in the model without wrappers."""
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
    """Gives every rank the weights and buffers of rank 0, as DistributedDataParallel does by itself."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, src=0)


def begin_single(setup: MethodSetup) -> TrainingStep:
    """Steps on this rank's own batches."""
    return TrainingStep(setup)


def begin_ddp(setup: MethodSetup) -> TrainingStep:
    """Steps that average gradients; the argument is the bucket in MiB, torch's own choice without it."""
    module = DistributedDataParallel(
        setup.trainee.model, bucket_cap_mb=setup.argument, static_graph=setup.name == "static_graph"
    )
    return TrainingStep(setup, module)


def begin_accumulate(setup: MethodSetup) -> TrainingStep:
    """Steps of which every `argument`-th sends gradients and updates."""
    module = DistributedDataParallel(setup.trainee.model)
    return TrainingStep(
        setup,
        module,
        num_accumulated=int(setup.argument or 1),
    )


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a stack: what is gathered together, one ahead of its use."""
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
    """Steps on sharded weights; each layer of a stack is one unit, the rest of the model another."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - torch has it from 2.6 on

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
    """Steps whose gradients cross the wire as `name`."""
    module = DistributedDataParallel(setup.trainee.model)
    dtype = _DTYPE[setup.name]

    # torch's own bf16 hook refuses without CUDA, although gloo adds bfloat16; one hook serves both types.
    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        # Divided before it is added, as torch does: a sum of many ranks could exceed float16's 65,504.
        sent = gradient.div(setup.world_size).to(dtype)
        adding = dist.all_reduce(sent, async_op=True).get_future()

        def restored(_done: object) -> torch.Tensor:
            gradient.copy_(sent)
            received: torch.Tensor = gradient
            return received

        return adding.then(restored)

    module.register_comm_hook(None, hook)
    return TrainingStep(setup, module)


# The callbacks of torch's hook wait for further all-reduces on gloo's own threads: with several buckets in
# flight every thread waits and none works. With one bucket that cannot happen, but nothing overlaps.
_ONE_BUCKET_MIB = 100_000

# The first steps are sent whole: buckets are laid out anew after the first, and errors belong to a layout.
NUM_WHOLE_STEPS = 2


def begin_powersgd(setup: MethodSetup) -> TrainingStep:
    """Steps whose gradients are sent as matrices of rank `argument`."""
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
    """Places and values of the largest entries by size, and the tensor without them: what is rest.

    corrected: (num_values,), a gradient plus what was rest of earlier ones. The parts add up to it exactly.
    """
    places = torch.topk(corrected.abs(), num_sent, sorted=False).indices
    rest = corrected.clone()
    rest[places] = 0
    return places, corrected[places], rest


class Sparsifier:
    """A communication hook with the memory of what was not sent yet, one tensor a bucket."""

    def __init__(self, fraction: float, world_size: int) -> None:
        """fraction: of the values of a bucket, 0..1; at least one value is sent."""
        self.unsent: dict[int, torch.Tensor] = {}
        self._fraction = fraction
        self._world_size = world_size
        self._num_steps = 0

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The future of the averaged bucket."""
        gradient = bucket.buffer()
        whole = self._num_steps < NUM_WHOLE_STEPS
        self._num_steps += bucket.is_last()
        return self._averaged(gradient) if whole else self._sparse(gradient, bucket.index())

    def _averaged(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        gradient.div_(self._world_size)
        adding = dist.all_reduce(gradient, async_op=True).get_future()
        return adding.then(lambda _done: gradient)

    def _sparse(self, gradient: torch.Tensor, index: int) -> torch.futures.Future[torch.Tensor]:
        corrected = gradient.float()
        if index in self.unsent:
            corrected = corrected + self.unsent[index]
        num_sent = max(1, math.ceil(self._fraction * corrected.numel()))
        places, values, self.unsent[index] = largest(corrected, num_sent)
        # Places and values travel together, as bytes of one message: an exchange costs one latency, not two.
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
    """Steps that send the fraction `argument` of their gradients' values."""
    module = DistributedDataParallel(setup.trainee.model)
    sparsifier = Sparsifier(float(setup.argument or 1.0), setup.world_size)
    module.register_comm_hook(None, sparsifier.hook)
    return TrainingStep(setup, module, hook_state=sparsifier)


def drifting(model: nn.Module) -> list[torch.Tensor]:
    """What differs between ranks that train alone: trained weights, and statistics such as batch norm's."""
    weights = [each.data for each in model.parameters() if each.requires_grad]
    return [*weights, *(each for each in model.buffers() if each.is_floating_point())]


def average(tensors: Iterable[torch.Tensor], world_size: int, *, dtype: torch.dtype = torch.float32) -> None:
    """Replaces each tensor by its mean over the ranks, in one message. dtype: the least that is added in."""
    tensors = list(tensors)
    sizes = [each.numel() for each in tensors]
    flat = torch.cat([each.reshape(-1).to(torch.promote_types(each.dtype, dtype)) for each in tensors])
    dist.all_reduce(flat)
    for tensor, mean in zip(tensors, flat.div_(world_size).split(sizes), strict=True):
        tensor.copy_(mean.view_as(tensor))


def average_changes(tensors: Sequence[torch.Tensor], agreed: Sequence[torch.Tensor], world_size: int) -> None:
    """Moves the tensors, and what was agreed on, to what was agreed on plus the ranks' mean change.

    Changes are sent as float16: they are small, and rounding takes up to 2^-11 of a change, not of a weight.
    Every rank adds the same numbers to equal weights: they stay equal bit by bit.
    """
    changes = [tensor - old for tensor, old in zip(tensors, agreed, strict=True)]
    # Divided before it is added: a sum of many ranks could exceed float16's 65,504.
    flat = torch.cat([each.reshape(-1) for each in changes]).div_(world_size).half()
    dist.all_reduce(flat)
    means = flat.split([each.numel() for each in changes])
    for tensor, old, mean in zip(tensors, agreed, means, strict=True):
        tensor.copy_(old.add_(mean.view_as(old)))


class Averaging:
    """Averages what differs between ranks that train alone; methods named *_fp16 send float16."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """What the model is now, all ranks agree on."""
        self.tensors = drifting(model)
        self._world_size = world_size
        self._agreed = [each.clone() for each in self.tensors] if name.endswith("_fp16") else []

    def run(self) -> None:
        """Replaces the tensors by their mean."""
        if self._agreed:
            average_changes(self.tensors, self._agreed, self._world_size)
        else:
            average(self.tensors, self._world_size)

    def restart(self) -> None:
        """From now on, all ranks agree on what the tensors are now."""
        for old, now in zip(self._agreed, self.tensors, strict=False):
            old.copy_(now)


# Douillard et al. 2023, table 5: Nesterov momentum 0.9 and learning rate 0.7 were best of those tried.
OUTER_LEARNING_RATE = 0.7
OUTER_MOMENTUM = 0.9


class OuterStep:
    """Moves the weights all ranks agree on by the mean of what each rank changed."""

    def __init__(self, name: str, model: nn.Module, world_size: int) -> None:
        """The weights as they are now are the first that all ranks agree on."""
        self._averaging = Averaging(name, model, world_size)
        self._trained = [each.data for each in model.parameters() if each.requires_grad]
        self._agreed = [each.clone() for each in self._trained]
        self._optimizer = torch.optim.SGD(
            self._agreed, lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True
        )

    def run(self) -> None:
        """One outer step; every rank then goes on from the same weights."""
        self._averaging.run()
        for agreed, mean in zip(self._agreed, self._trained, strict=True):
            agreed.grad = agreed - mean
        self._optimizer.step()
        for agreed, weight in zip(self._agreed, self._trained, strict=True):
            weight.copy_(agreed)
        self._averaging.restart()


def begin_local(setup: MethodSetup) -> TrainingStep:
    """Steps on this rank's own batches, of which every `argument`-th ends with an average or an outer step.

    Momentum stays with its rank; the optimizer of a diloco is the inner one.
    """
    start_equal(setup.trainee.model)
    kind = OuterStep if setup.name.startswith("diloco") else Averaging
    exchange = kind(setup.name, setup.trainee.model, setup.world_size)
    return TrainingStep(setup, exchange=exchange.run, exchange_every=int(setup.argument or 1))
