"""What is trained, a model of the zoo or a user's function, and the ways to train it that can be measured.

Text such as `accumulate:4` names a way. Torch loads on use.
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
    """What updates the weights on each rank; momentum is SGD's, AdamW keeps its usual 0.9 and 0.999."""

    name: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0


class Trainee(Struct, frozen=True, kw_only=True):
    """A model with its data: each batch is this rank's part of a global batch."""

    model: Any  # torch.nn.Module
    batches: "Iterator[Any]"
    loss: "Callable[[Any, Any], torch.Tensor]"  # of model and batch: the mean over the batch's samples
    num_samples: "Callable[[Any], int]"
    held_out: Any = None  # a batch never trained on, or None where the data are random
    # Of model and batch; None where answers are not right or wrong.
    num_correct: "Callable[[Any, Any], int] | None" = None
    settings: OptimizerSettings = field(default_factory=OptimizerSettings)


class ZooModel(Struct, frozen=True, kw_only=True):
    """A model that has a name. builder: the function of `models`, with these sizes; the name unless given."""

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
    """Whether it is a model of the zoo. Raises UsageError when it cannot be a user's function either."""
    known = [each.name for each in ZOO]
    if ":" not in name and name not in known:
        near, own = get_close_matches(name, known, n=3), "your own module:function"
        meant = hint([*near, own] if near else (), f"expected one of {', '.join((*known, own))}")
        raise UsageError(f"model {name!r} is unknown; {meant}")
    return name in known


def trainee(name: str, *, batch_samples: int, seed: int, rank: int = 0, num_ranks: int = 1) -> Trainee:
    """The model that a name of the zoo or `module:function` stands for, with this rank's batches.

    batch_samples: of all ranks together. Every rank builds the same weights and draws the same global batches
    from the seed, and takes its rows of each.
    Raises UsageError for an unknown name, a batch that the ranks cannot share equally, or a missing package;
    SpecError for what is wrong with a user's function.
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

# The tests run over gloo; nccl is what PyTorch documents these features for, and was not run here. A
# collective that hangs gives no message, so others are not offered.
OFFERED_BACKENDS = ("gloo", "nccl")


class MethodArgument(Struct, frozen=True, kw_only=True):
    """The argument behind a method's colon: what it means and which values make sense."""

    meaning: str
    example: str
    least: float
    is_whole: bool = False
    largest: float = float("inf")
    needed: bool = True

    def read(self, name: str, text: str) -> int | float:
        """The argument's value.

        Raises UsageError if it is no number or out of range.
        """
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
    """What the steps of a rank are made of; the method's name, as one function may serve several."""

    name: str
    trainee: Trainee
    world_size: int
    argument: Argument


Effect = Literal["exact", "exact for a larger batch", "lossy", "changes the algorithm"]


class Method(Struct, frozen=True, kw_only=True):
    """A way to train. begins: a function of `steps`, which imports torch and is loaded on use.

    effect: on what is learned from a sample. work_like: what it computes beyond the model is that of another
    method, so many times; None where only it does such work. ranks: those it needs: one, several that
    exchange something, or several with weights sharded.
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
        """Why it cannot run on so many ranks over a backend; None if it can."""
        if self.ranks == "one":
            wrong = world_size != 1
            return f"trains on one rank; got {world_size} ranks; use ddp or another" if wrong else None
        if world_size < 2:  # noqa: PLR2004 - one has no other to exchange with
            return f"needs at least 2 ranks; got {world_size}; use single"
        if backend not in OFFERED_BACKENDS:
            return f"was not tested over {backend}; available over {' and '.join(OFFERED_BACKENDS)}"
        return _no_sharding() if self.ranks == "sharded" else None

    def num_accumulated(self, argument: Argument) -> int:
        """Micro-batches between exchanges."""
        return int(argument or 1) if self.name == "accumulate" else 1

    def begin(self, trainee: Trainee, *, world_size: int, argument: Argument = None) -> Any:  # noqa: ANN401 - a TrainingStep of `steps`
        """The steps of one rank, ready to run.

        Assumes that `why_not` has no objection, and that the process group exists where ranks share.
        """
        steps = import_module("equipoise.bench.training.steps")
        setup = MethodSetup(name=self.name, trainee=trainee, world_size=world_size, argument=argument)
        return getattr(steps, self.begins)(setup)


# The first torch whose `fully_shard` is public: torch.distributed.fsdp.fully_shard.
_FIRST_SHARDING = (2, 6)


def _no_sharding() -> str | None:
    """Why the installed torch cannot shard weights; None if it can."""
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
# Those that exchange whole gradients as they are, and change nothing else.
PLAIN = frozenset({"single", "ddp", "static_graph", "accumulate"})


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
