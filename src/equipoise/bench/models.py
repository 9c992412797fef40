"""What is trained: a model of the zoo or a user's function, with batches and loss. Torch loads on use."""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def settings_at(self, learning_rate: float | None) -> OptimizerSettings:
        """Its own optimizer at that learning rate; at its own rate for None."""
        return self.settings if learning_rate is None else replace(self.settings, learning_rate=learning_rate)


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


_DIGITS = "scikit-learn's handwritten digits: 1,797 images of 8 x 8, every fifth held out"
# On digits: docs/experiments/0013-convergence.md.
_ON_DIGITS = OptimizerSettings(learning_rate=0.05, momentum=0.9)

_IMAGES = "random images of 3 x 224 x 224"

ZOO = (
    ZooModel(
        name="mlp",
        title="MLP, 64-256-256-10",
        params=85_002,
        data=_DIGITS,
        source="this project",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="wide_mlp",
        title="MLP, 64-768-768-10",
        params=648_202,
        data=_DIGITS,
        source="this project",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="large_mlp",
        title="MLP, 64-1920-1920-10",
        params=3_832_330,
        data=_DIGITS,
        source="this project",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="small_resnet",
        title="ResNet of three blocks, 64, 128 and 256 wide",
        params=1_226_442,
        data=_DIGITS,
        source="He et al. 2015, arXiv 1512.03385, figure 2 and section 4.2",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="digits_mobilenet",
        title="MobileNetV2 for ten classes",
        params=2_236_682,
        data=f"{_DIGITS}; enlarged to 32 x 32, in three equal channels",
        source="Sandler et al. 2018, arXiv 1801.04381",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="small_cnn",
        title="small CNN of torch's MNIST example",
        params=1_199_882,
        data=f"{_DIGITS}; enlarged to 28 x 28",
        source="https://github.com/pytorch/examples/blob/main/mnist/main.py",
        settings=_ON_DIGITS,
    ),
    ZooModel(
        name="mobilenet_v2",
        title="MobileNetV2",
        params=3_504_872,
        data=_IMAGES,
        source="Sandler et al. 2018, arXiv 1801.04381",
    ),
    ZooModel(
        name="resnet50",
        title="ResNet-50",
        params=25_557_032,
        data=_IMAGES,
        source="He et al. 2015, arXiv 1512.03385",
    ),
    ZooModel(
        name="resnet152",
        title="ResNet-152",
        params=60_192_808,
        data=_IMAGES,
        source="He et al. 2015, arXiv 1512.03385",
    ),
    ZooModel(
        name="vit_large",
        title="ViT-L/16",
        params=304_326_632,
        data=_IMAGES,
        source="Dosovitskiy et al. 2020, arXiv 2010.11929",
    ),
    ZooModel(
        name="bert",
        title="BERT-large, masked words",
        params=335_174_458,
        data="random text of 128 tokens, 15 % of them masked",
        source="Devlin et al. 2018, arXiv 1810.04805",
    ),
    ZooModel(
        name="small_llama",
        title="Llama of 15 M parameters",
        params=15_191_712,
        data="random text of 256 tokens",
        source="https://github.com/karpathy/llama2.c, stories15M",
    ),
    ZooModel(
        name="small_llama_lora",
        title="the same Llama, of which LoRA of rank 8 on queries and values is trained",
        params=15_247_008,
        data="random text of 256 tokens",
        source="Hu et al. 2021, arXiv 2106.09685",
    ),
)


def known_name(name: str) -> bool:
    """Whether it is a model of the zoo. Raises UsageError when it cannot be a user's function either."""
    known = {each.name: each for each in ZOO}
    if ":" not in name and name not in known:
        near = get_close_matches(name, known, n=3)
        listed = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"
        raise UsageError(f"model {name!r} is unknown; {listed}, or your own module:function")
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
        data = import_module("equipoise.bench.zoo.data")
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
