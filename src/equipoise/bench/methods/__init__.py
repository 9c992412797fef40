"""The ways to train that can be measured; text such as `accumulate:4` names one. Torch loads on use."""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from equipoise.bench.models import OptimizerSettings, Trainee
from equipoise.errors import UsageError

if TYPE_CHECKING:
    import torch

Argument = int | float | None

# The tests run over gloo; nccl is what PyTorch documents these features for, and was not run here. A
# collective that hangs gives no message, so others are not offered.
OFFERED_BACKENDS = ("gloo", "nccl")


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


class MethodArgument(Struct, frozen=True, kw_only=True):
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


class MethodSetup(Struct, frozen=True, kw_only=True):
    """What the steps of a rank are made of; the method's name, as one function may serve several."""

    name: str
    trainee: Trainee
    settings: OptimizerSettings
    world_size: int
    argument: Argument


def alone(world_size: int, backend: str) -> str | None:
    """Why a method for one rank cannot run."""
    del backend
    return None if world_size == 1 else f"trains on one rank; got {world_size} ranks; use ddp or another"


def shared(world_size: int, backend: str) -> str | None:
    """Why a method whose ranks exchange something cannot run."""
    if world_size < 2:  # noqa: PLR2004 - one has nobody to exchange with
        return f"needs at least 2 ranks; got {world_size}; use single"
    if backend not in OFFERED_BACKENDS:
        return f"was not tested over {backend}; available over {' and '.join(OFFERED_BACKENDS)}"
    return None


class Method(Struct, frozen=True, kw_only=True):
    """A way to train. begins: a function of `steps`, which imports torch and is loaded on use.

    why_not: why it cannot run on so many ranks over a backend; None if it can.
    """

    name: str
    meaning: str
    begins: str
    source: str
    takes: MethodArgument | None = None
    why_not: Callable[[int, str], str | None] = shared

    def begin(
        self, trainee: Trainee, settings: OptimizerSettings, *, world_size: int, argument: Argument = None
    ) -> Step:
        """The steps of one rank, ready to run.

        Assumes that `why_not` has no objection, and that the process group exists where ranks share.
        """
        steps = import_module("equipoise.bench.methods.steps")
        setup = MethodSetup(
            name=self.name, trainee=trainee, settings=settings, world_size=world_size, argument=argument
        )
        begun: Step = getattr(steps, self.begins)(setup)
        return begun


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


_BUCKET = MethodArgument(meaning="the bucket in MiB", example="25", kind=float, least=0.001, needed=False)

_PERIOD = MethodArgument(meaning="the number of steps between averages", example="8", kind=int, least=1)

METHODS = (
    Method(
        name="single",
        meaning="one rank, no communication",
        begins="begin_single",
        source="the baseline",
        why_not=alone,
    ),
    Method(
        name="ddp",
        meaning="gradients averaged in buckets while the backward pass runs",
        begins="begin_ddp",
        source="Li et al. 2020, PyTorch Distributed, arXiv 2006.15704",
        takes=_BUCKET,
    ),
    Method(
        name="static_graph",
        meaning="ddp where the same weights are used in every step",
        begins="begin_ddp",
        source="torch.nn.parallel.DistributedDataParallel, static_graph",
        takes=_BUCKET,
    ),
    Method(
        name="fsdp",
        meaning="weights, gradients and optimizer state sharded; gathered where needed",
        begins="begin_fsdp",
        source="Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277",
        why_not=sharded,
    ),
    Method(
        name="accumulate",
        meaning="gradients of several batches summed on each rank before they are averaged",
        begins="begin_accumulate",
        source="Ott et al. 2018, Scaling NMT, arXiv 1806.00187, section 3.1",
        takes=MethodArgument(meaning="the number of batches", example="4", kind=int, least=1),
    ),
    Method(
        name="fp16",
        meaning="ddp that sends gradients as float16",
        begins="begin_rounded",
        source="torch.distributed.algorithms.ddp_comm_hooks.default_hooks, fp16_compress_hook",
    ),
    Method(
        name="bf16",
        meaning="ddp that sends gradients as bfloat16",
        begins="begin_rounded",
        source="torch.distributed.algorithms.ddp_comm_hooks.default_hooks, bf16_compress_hook",
    ),
    Method(
        name="powersgd",
        meaning="ddp that sends a low-rank approximation of each gradient, its error fed back",
        begins="begin_powersgd",
        source="Vogels et al. 2019, PowerSGD, arXiv 1905.13727",
        takes=MethodArgument(meaning="the rank of the approximation", example="2", kind=int, least=1),
    ),
    Method(
        name="topk",
        meaning="ddp that sends only the largest values of each gradient, the rest kept for later steps",
        begins="begin_topk",
        source="Stich et al. 2018, Sparsified SGD with Memory, arXiv 1809.07599",
        takes=MethodArgument(
            meaning="the fraction of values", example="0.01", kind=float, least=1e-6, largest=1.0
        ),
    ),
    Method(
        name="localsgd",
        meaning="each rank trains independently; weights are averaged every few steps",
        begins="begin_localsgd",
        source="Stich 2019, Local SGD, arXiv 1805.09767",
        takes=_PERIOD,
    ),
    Method(
        name="localsgd_fp16",
        meaning="local SGD that sends the changes of weights since the last average, as float16",
        begins="begin_localsgd",
        source="Stich 2019, arXiv 1805.09767; rounded as gradients are by fp16_compress_hook",
        takes=_PERIOD,
    ),
    Method(
        name="diloco",
        meaning="local SGD whose averaged change is applied by an outer optimizer with momentum; "
        "unstable at short periods where the inner optimizer has momentum too",
        begins="begin_diloco",
        source="Douillard et al. 2023, DiLoCo, arXiv 2311.08105",
        takes=_PERIOD,
    ),
    Method(
        name="diloco_fp16",
        meaning="DiLoCo that sends the changes of weights as float16; unstable where diloco is",
        begins="begin_diloco",
        source="Douillard et al. 2025, Streaming DiLoCo, arXiv 2501.18512: rounds to 4 bits",
        takes=_PERIOD,
    ),
)


def method(text: str) -> tuple[Method, Argument]:
    """The method and the argument that `name` or `name:argument` names.

    Raises UsageError with the nearest names, or with what the argument must be.

    >>> found, argument = method("accumulate:4")
    >>> found.name, argument
    ('accumulate', 4)
    """
    name, colon, given = text.strip().partition(":")
    known = {each.name: each for each in METHODS}
    if name not in known:
        near = get_close_matches(name, known, n=3)
        listed = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
        raise UsageError(f"method {name!r} is unknown; {listed}")
    found = known[name]
    if found.takes is None:
        if colon:
            raise UsageError(f"{text}: {name} takes no argument; write {name}")
        return found, None
    if not colon:
        if found.takes.needed:
            raise UsageError(
                f"{name} needs an argument, {found.takes.meaning}; write {name}:{found.takes.example}"
            )
        return found, None
    return found, found.takes.read(name, given)
