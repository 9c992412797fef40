"""What is trained: a model of the zoo or a user's function, with batches and loss. Torch loads on use."""

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, field
from msgspec.structs import replace

from equipoise.errors import UsageError
from equipoise.files import shipped_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import torch

    Batch = tuple[torch.Tensor, ...] | dict[str, torch.Tensor]

NEEDS_TORCH = "training a model needs torch: pip install 'equipoise[torch]'"
NEEDS_TRANSFORMERS = "needs the model code of transformers: pip install 'equipoise[zoo]'"


OPTIMIZERS = ("sgd", "adamw")


class OptimizerSettings(Struct, frozen=True, kw_only=True):
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
    """A model that has a name, which is that of its builder in zoo.models too."""

    name: str
    title: str
    params: int
    data: str
    source: str
    settings: OptimizerSettings = field(default_factory=OptimizerSettings)

    def build(self) -> Any:  # noqa: ANN401 - ZooParts of zoo.data, which imports torch
        """The parts of a `Trainee`. Raises UsageError where a package is missing."""
        try:
            return getattr(import_module("equipoise.bench.zoo.models"), self.name)()
        except ModuleNotFoundError as err:
            if err.name == "torch":
                raise UsageError(NEEDS_TORCH) from err
            if err.name == "transformers":
                raise UsageError(f"{self.name} {NEEDS_TRANSFORMERS}") from err
            raise


# The models of models.toml.
ZOO = convert(
    shipped_table(Path(__file__).with_name("models.toml"))["models"],
    tuple[ZooModel, ...],
)


def hint(name: str, known: "Collection[str]") -> str:
    """What was expected in place of an unknown name: the nearest names, or else all of them."""
    near = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"


def known_name(name: str) -> bool:
    """Whether it is a model of the zoo. Raises UsageError when it cannot be a user's function either."""
    known = [each.name for each in ZOO]
    if ":" not in name and name not in known:
        raise UsageError(f"model {name!r} is unknown; {hint(name, known)}, or your own module:function")
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
        data = import_module("equipoise.bench.zoo.models")
    except ModuleNotFoundError as err:
        if err.name != "torch":
            raise
        raise UsageError(NEEDS_TORCH) from err
    found: Trainee = data.made_trainee(
        name,
        model and model.build,
        batch_samples=batch_samples,
        seed=seed,
        share=(rank, num_ranks),
    )
    return replace(found, settings=model.settings) if model else found
