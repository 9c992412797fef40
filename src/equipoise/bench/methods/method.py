"""What a way to train is: its name, its argument, where it cannot run, and how its steps begin. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

from equipoise.errors import UsageError

if TYPE_CHECKING:
    import torch

    from equipoise.bench.models import Trainee

Argument = int | float | None

OPTIMIZERS = ("sgd", "adamw")

# The tests run over gloo; nccl is what PyTorch documents these features for, and was not run here. A
# collective that hangs says nothing, so others are not offered.
OFFERED_BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """What updates the weights on each rank; momentum is SGD's, AdamW keeps its usual 0.9 and 0.999."""

    name: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what cannot update weights."""
        if self.name not in OPTIMIZERS:
            raise UsageError(f"optimizer {self.name!r} is unknown; expected one of {', '.join(OPTIMIZERS)}")
        if self.learning_rate <= 0:
            raise UsageError(f"learning_rate={self.learning_rate}; expected more than 0")


class Step(Protocol):
    """One rank's training: each `run` takes one batch; `period` runs are one cycle of the method."""

    period: int
    marks: "list[Callable[[str], None]]"
    module: "torch.nn.Module"

    def run(self, batch: tuple["torch.Tensor", ...]) -> "torch.Tensor":
        """The batch's loss on this rank, after forward, backward, and what of update and exchange is due."""

    def weights(self) -> "dict[str, torch.Tensor]":
        """Every weight and buffer, whole; where they are sharded every rank must call."""

    def close(self) -> None:
        """Ends the training with equal weights on all ranks; gradients of an unfinished cycle are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodArgument:
    """The argument behind a method's colon: what it means and which values make sense."""

    meaning: str
    example: str
    kind: type[int] | type[float]
    least: float
    largest: float = float("inf")
    needed: bool = True

    def read(self, name: str, text: str) -> int | float:
        """The argument's value.

        Raises UsageError if it is no such number or out of range.
        """
        try:
            value = self.kind(text)
        except ValueError:
            value = self.kind(0)
        if not self.least <= value <= self.largest or value == 0:
            above = f" and at most {self.largest:g}" if self.largest < float("inf") else ""
            raise UsageError(
                f"{name}:{text}: {self.meaning} must be at least {self.least:g}{above}; "
                f"write {name}:{self.example}"
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to train. begins: `module:function` of this package; the module imports torch and loads late.

    why_not: why it cannot run on so many ranks over a backend; None if it can.
    """

    name: str
    meaning: str
    begins: str
    source: str
    takes: MethodArgument | None = None
    why_not: Callable[[int, str], str | None]

    def begin(
        self,
        trainee: "Trainee",
        settings: OptimizerSettings,
        *,
        rank: int,
        world_size: int,
        argument: Argument = None,
    ) -> Step:
        """The steps of one rank, ready to run; the process group must exist where ranks share.

        Raises UsageError with the reason if the method cannot run here.
        """
        import torch.distributed as dist  # noqa: PLC0415 - torch takes seconds

        backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else "none"
        reason = self.why_not(world_size, backend)
        if reason is not None:
            raise UsageError(f"{self.name}: {reason}")
        begin = self.begin_function()
        step: Step = begin(self.name, trainee, settings, rank=rank, world_size=world_size, argument=argument)
        return step

    def begin_function(self) -> Callable[..., Step]:
        """What makes a rank's steps, without asking whether the method can run here. Loads torch."""
        module, _, function = self.begins.partition(":")
        found: Callable[..., Step] = getattr(import_module(f"equipoise.bench.methods.{module}"), function)
        return found


def alone(world_size: int, backend: str) -> str | None:
    """Why a method for one rank cannot run."""
    del backend
    return None if world_size == 1 else f"trains on one rank; got {world_size} ranks; use ddp or another"


def shared(world_size: int, backend: str) -> str | None:
    """Why a method whose ranks exchange something cannot run."""
    if world_size < 2:  # noqa: PLR2004 - one has nobody to exchange with
        return f"needs at least 2 ranks; got {world_size}; use single"
    if backend not in OFFERED_BACKENDS:
        return f"was never tried over {backend}; offered over {' and '.join(OFFERED_BACKENDS)}"
    return None


# The first torch whose `fully_shard` is public: torch.distributed.fsdp.fully_shard.
_FIRST = (2, 6)


def sharded(world_size: int, backend: str) -> str | None:
    """Why sharded training cannot run."""
    reason = shared(world_size, backend)
    if reason is not None:
        return reason
    try:
        found = version("torch")
    except PackageNotFoundError:
        return "needs torch: pip install 'equipoise[torch]'"
    major, minor = (int("".join(filter(str.isdigit, part))) for part in found.split(".")[:2])
    if (major, minor) < _FIRST:
        return f"needs torch 2.6 or later; got {found}"
    return None
