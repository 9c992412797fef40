"""Workloads (models of the zoo or a user's function) and training methods, named e.g. `accumulate:4`.

Torch is imported only when it is used.
"""

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, convert, field

from equipoise.errors import UsageError, hint
from equipoise.files import shipped_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


class OptimizerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the optimizer; momentum applies to SGD only, AdamW uses its default betas 0.9 and 0.999."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0


class Trainee(Struct, frozen=True, kw_only=True):
    """A model with its data; each batch is this rank's part of a global batch."""

    model: Any  # torch.nn.Module
    batches: "Iterator[Any]"
    loss: "Callable[[Any, Any], torch.Tensor]"  # of model and batch: the mean over the batch's samples
    num_samples: "Callable[[Any], int]"
    held_out: Any = None  # a batch never trained on; None if the data are random
    # Of model and batch; None if the outputs cannot be classified as correct or wrong.
    num_correct: "Callable[[Any, Any], int] | None" = None
    settings: OptimizerSettings = field(default_factory=OptimizerSettings)


class ZooModel(Struct, frozen=True, kw_only=True):
    """A named model. builder: a function of `models`, called with `sizes`; the model's name by default."""

    name: str
    title: str
    params: int
    data: str
    source: str
    settings: OptimizerSettings = field(default_factory=OptimizerSettings)
    builder: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)


# The models of models.toml.
ZOO = convert(
    shipped_table(Path(__file__).with_name("models.toml"))["models"],
    tuple[ZooModel, ...],
)


def known_name(name: str) -> bool:
    """Return whether it is a model of the zoo. Raises UsageError if it is not a user's function either."""
    known = [each.name for each in ZOO]
    if ":" not in name and name not in known:
        near, own = get_close_matches(name, known, n=3), "your own module:function"
        meant = hint([*near, own] if near else (), f"expected one of {', '.join((*known, own))}")
        raise UsageError(f"model {name!r} is unknown; {meant}")
    return name in known


def trainee(name: str, *, batch_samples: int, seed: int, rank: int = 0, num_ranks: int = 1) -> Trainee:
    """Return the model named by the zoo or by `module:function`, with this rank's batches.

    batch_samples: over all ranks. Every rank builds the same weights and draws the same global batches from
    the seed, and uses its own rows of each batch.
    Raises UsageError for an unknown name, a batch that the ranks cannot share equally, or a missing package;
    SpecError if a user's function is invalid.
    """
    if batch_samples < 1 or batch_samples % num_ranks:
        raise UsageError(
            f"a batch of {batch_samples} samples cannot be shared equally by {num_ranks} ranks; "
            f"expected a multiple of {num_ranks}"
        )
    model = next((each for each in ZOO if each.name == name), None) if known_name(name) else None
    try:
        models = import_module("equipoise.bench.training.models")
        made: Trainee = models.made_trainee(
            name, model, batch_samples=batch_samples, seed=seed, share=(rank, num_ranks)
        )
    except ModuleNotFoundError as err:
        if err.name == "torch":
            raise UsageError("training a model needs torch: pip install 'equipoise[torch]'") from err
        if model and err.name == "transformers":
            raise UsageError(
                f"{name} needs the model code of transformers: pip install 'equipoise[zoo]'"
            ) from err
        raise
    return made


Argument = int | float | None

# The tests run over gloo. PyTorch documents these features for nccl, which was not tested here. Other
# backends are not offered, because a hanging collective gives no message.
OFFERED_BACKENDS = ("gloo", "nccl")


class MethodArgument(Struct, frozen=True, kw_only=True):
    """The argument after a method's colon: its meaning and its range."""

    meaning: str
    example: str
    least: float
    is_whole: bool = False
    largest: float = float("inf")
    needed: bool = True

    def read(self, name: str, text: str) -> int | float:
        """Return the argument's value. Raises UsageError if it is not a number or is out of range."""
        try:
            value = int(text) if self.is_whole else float(text)
        except ValueError:
            value = 0
        if not self.least <= value <= self.largest or value == 0:
            above = f" and at most {self.largest:g}" if self.largest < float("inf") else ""
            raise UsageError(
                f"{name}:{text}: {self.meaning} must be at least {self.least:g}{above}; "
                f"write {name}:{self.example}"
            )
        return value


class MethodSetup(Struct, frozen=True, kw_only=True):
    """The input of a function that begins a method. name: of the method, as methods may share a function."""

    name: str
    trainee: Trainee
    world_size: int
    argument: Argument


Effect = Literal["exact", "exact for a larger batch", "lossy", "changes the algorithm"]


class Method(Struct, frozen=True, kw_only=True):
    """A training method. begins: a function of `steps`, which is imported on use because it needs torch.

    effect: on what is learned from a sample. work_like: another method and the multiple of its extra
    computation that this method does; None if no other method does similar work. ranks: the number of ranks
    required; with `sharded`, several ranks with sharded weights.
    """

    name: str
    meaning: str
    effect: Effect
    begins: str
    source: str
    takes: MethodArgument | None = None
    work_like: tuple[str, float] | None = None
    ranks: Literal["one", "several", "sharded"] = "several"

    def why_not(self, world_size: int, backend: str) -> str | None:
        """Return the reason why it cannot run on this many ranks over a backend; None if it can."""
        if self.ranks == "one":
            wrong = world_size != 1
            return f"trains on one rank; got {world_size} ranks; use ddp or another" if wrong else None
        if world_size < 2:  # noqa: PLR2004 - a single rank has no peer
            return f"needs at least 2 ranks; got {world_size}; use single"
        if backend not in OFFERED_BACKENDS:
            return f"was not tested over {backend}; available over {' and '.join(OFFERED_BACKENDS)}"
        return _no_sharding() if self.ranks == "sharded" else None

    def num_accumulated(self, argument: Argument) -> int:
        """Micro-batches between exchanges."""
        return int(argument or 1) if self.name == "accumulate" else 1

    def begin(self, trainee: Trainee, *, world_size: int, argument: Argument = None) -> Any:  # noqa: ANN401 - a TrainingStep of `steps`
        """Return the step of one rank, ready to run.

        Assumes that `why_not` returned None, and that the process group exists if there are several ranks.
        """
        steps = import_module("equipoise.bench.training.steps")
        setup = MethodSetup(name=self.name, trainee=trainee, world_size=world_size, argument=argument)
        return getattr(steps, self.begins)(setup)


# The first version of torch with a public `torch.distributed.fsdp.fully_shard`.
_FIRST_SHARDING = (2, 6)


def _no_sharding() -> str | None:
    """Return the reason why the installed torch cannot shard weights; None if it can."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return "needs torch: pip install 'equipoise[torch]'"
    major, minor = (int("".join(filter(str.isdigit, part))) for part in found.split(".")[:2])
    return f"needs torch 2.6 or later; got {found}" if (major, minor) < _FIRST_SHARDING else None


# The methods of methods.toml.
METHODS = convert(
    shipped_table(Path(__file__).with_name("methods.toml"))["methods"],
    tuple[Method, ...],
)
# Methods that exchange complete, uncompressed gradients and change nothing else.
PLAIN = frozenset({"single", "ddp", "static_graph", "accumulate"})


def method(text: str) -> tuple[Method, Argument]:
    """Return the method and argument of `name` or `name:argument`.

    Raises UsageError with the nearest names, or with the expected argument.

    >>> found, argument = method("accumulate:4")
    >>> found.name, argument
    ('accumulate', 4)
    """
    name, colon, given = text.strip().partition(":")
    known = {each.name: each for each in METHODS}
    if name not in known:
        near = hint(get_close_matches(name, known, n=3), f"expected one of {', '.join(known)}")
        raise UsageError(f"method {name!r} is unknown; {near}")
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
