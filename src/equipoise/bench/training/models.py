"""The model zoo: models with their data and losses, and a user's own function. Needs torch."""

import gzip
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from equipoise.bench.training import Trainee, ZooModel
from equipoise.errors import SpecError
from equipoise.spec.torch_model import load_factory
from equipoise.spec.torch_model.fakes import tensors_in

# Random samples are drawn once and reused, so that the time of drawing them is not measured.
NUM_RANDOM_SAMPLES = 64
HELD_OUT_EVERY = 5


class ZooParts(Struct, frozen=True, kw_only=True):
    """The result of a builder of the zoo; the first dim of each tensor of `pool` is samples."""

    model: nn.Module
    pool: tuple[torch.Tensor, ...]
    loss: Callable[[Any, Any], torch.Tensor]
    held_out: tuple[torch.Tensor, ...] | None = None
    num_correct: Callable[[Any, Any], int] | None = None


def made_trainee(
    name: str, model: ZooModel | None, *, batch_samples: int, seed: int, share: tuple[int, int]
) -> Trainee:
    """Return one rank's trainee: of a model of the zoo, or of the user's function `name` if `model` is None.

    share: rank and number of ranks.
    """
    torch.manual_seed(seed)
    made = (
        _of_user(name, batch_samples, seed, share)
        if model is None
        else _of_zoo(model, batch_samples, seed, share)
    )
    # Every rank has the same weights, but different samples and therefore different dropout masks.
    torch.manual_seed(seed + share[0])
    return made


def built(model: ZooModel) -> ZooParts:
    """Call the model's builder with its sizes."""
    found: ZooParts = globals()[model.builder or model.name](**model.sizes)
    return found


def _of_zoo(model: ZooModel, batch_samples: int, seed: int, share: tuple[int, int]) -> Trainee:
    """Return the trainee of a model of the zoo."""
    made = built(model)
    places = shuffled_places(len(made.pool[0]), batch_samples, seed=seed, share=share)
    return Trainee(
        model=made.model,
        batches=(tuple(tensor[rows] for tensor in made.pool) for rows in places),
        loss=made.loss,
        num_samples=lambda batch: len(batch[0]),
        held_out=made.held_out,
        num_correct=made.num_correct,
        settings=model.settings,
    )


def shuffled_places(
    num_samples: int, batch_samples: int, *, seed: int, share: tuple[int, int]
) -> Iterator[torch.Tensor]:
    """Yield this rank's row indices of successive global batches, in an order that is the same on all ranks.

    Every sample is used once per epoch; a batch may span two epochs.
    """
    rank, num_ranks = share
    rows = batch_samples // num_ranks
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < batch_samples:
            order = torch.cat((order, torch.randperm(num_samples, generator=generator)))
        yield order[rank * rows : (rank + 1) * rows]
        order = order[batch_samples:]


def _of_user(reference: str, batch_samples: int, seed: int, share: tuple[int, int]) -> Trainee:
    """Return the trainee of a user's function.

    Without held-out data, the function's batch is repeated or cut to the rows needed. With held-out data, its
    batch is the training set, from which batches are drawn.

    Raises SpecError if the function's result cannot be trained on.
    """
    model, batch, loss, held_out = load_factory(reference).made_with_held_out()
    # A list of tensors is treated like a tuple: the inputs of the model.
    batch, held_out = (tuple(each) if isinstance(each, list) else each for each in (batch, held_out))
    tensors = _tensors(reference, batch)
    num_given = min(len(each) for each in tensors)
    rank, num_ranks = share
    rows = batch_samples // num_ranks
    places = torch.arange(rank * rows, (rank + 1) * rows) % num_given
    mine = rows_of(batch, places)
    drawn = shuffled_places(num_given, batch_samples, seed=seed, share=share)
    return Trainee(
        model=model,
        batches=repeat(mine) if held_out is None else (rows_of(batch, each) for each in drawn),
        loss=lambda module, given: _loss(reference, module, given, loss),
        num_samples=lambda given: min(len(each) for each in _tensors(reference, given)),
        held_out=held_out,
    )


def _tensors(reference: str, batch: object) -> list[torch.Tensor]:
    """Return the batch's tensors, each with samples in its first dim."""
    tensors = [each for each in tensors_in(batch) if each.ndim]
    if not tensors or min(len(each) for each in tensors) == 0:
        raise SpecError(
            f"{reference}: the second value is a {type(batch).__name__} without samples; "
            "expected a tensor, a tuple or a dict of tensors whose first dim is the batch"
        )
    return tensors


def rows_of(batch: Any, places: torch.Tensor) -> Any:  # noqa: ANN401 - a tensor, tuple or dict
    """Return the samples of a batch with these indices."""
    return tree_map_only(
        torch.Tensor, lambda each: each[places.to(each.device)] if each.ndim else each, batch
    )


def _loss(
    reference: str,
    module: nn.Module,
    batch: Any,  # noqa: ANN401 - a tensor, tuple or dict
    loss: Callable[..., torch.Tensor] | None,
) -> torch.Tensor:
    """Return the loss of a user's model, called in the same way as by `spec.torch_model.count`."""
    if isinstance(batch, dict):
        output = module(**batch)
        found = loss(output, batch) if loss else _loss_of_output(output)
    elif isinstance(batch, tuple):
        output = module(*batch[:-1]) if loss else module(*batch)
        found = loss(output, batch[-1]) if loss else _loss_of_output(output)
    else:
        output = module(batch)
        found = loss(output) if loss else _loss_of_output(output)
    if not isinstance(found, torch.Tensor) or found.ndim:
        raise SpecError(
            f"{reference}: the loss is a {type(found).__name__}; expected a tensor with one number: "
            "return model, batch, loss, or a model whose output has a loss"
        )
    return found


def _loss_of_output(output: Any) -> Any:  # noqa: ANN401 - whatever a model returns
    """Return the loss in a model's output, or None."""
    return output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)


SMALL_NUM_CLASSES = 10


class Residual(nn.Module):  # type: ignore[misc] # torch is not followed
    """A residual block of two 3 x 3 convolutions; the shortcut is projected if the shape changes.

    Source: He et al. 2015, figure 2; the projection of equation 2.
    """

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        """stride: of the first convolution."""
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (num_samples, channels_out, side / stride, side / stride)."""
        return functional.relu(self.shortcut(x) + self.change(x))


def mlp(hidden: int) -> ZooParts:
    """Return an MLP with 64 pixels as input, two hidden layers and 10 classes."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, SMALL_NUM_CLASSES),
    )
    return on_digits(model, side=8)


def small_resnet() -> ZooParts:
    """Return a ResNet with one block per width: 64, 128, 256 channels on 8 x 8, 4 x 4, 2 x 2 pixels."""
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        Residual(64, 64, stride=1),
        Residual(64, 128, stride=2),
        Residual(128, 256, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, SMALL_NUM_CLASSES),
    )
    return on_digits(model, side=8)


def small_cnn() -> ZooParts:
    """Return the network of PyTorch's MNIST example, for images of 28 x 28 pixels."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, SMALL_NUM_CLASSES),
    )
    return on_digits(model, side=28)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (num_samples, 8, 8) with pixels from 0 to 16, and their digits.

    They are read directly from scikit-learn's file if it is found, because importing scikit-learn takes every
    rank of every run a second.
    """
    spec = find_spec("sklearn")
    path = Path(str(spec and spec.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        with gzip.open(path, "rt") as file:
            rows = np.loadtxt(file, delimiter=",")
    else:  # the package has another file layout
        from sklearn.datasets import load_digits  # noqa: PLC0415 - see above

        found = load_digits()
        rows = np.column_stack([found.data, found.target])
    images = torch.tensor(rows[:, :-1], dtype=torch.float32).reshape(-1, 8, 8)
    return images, torch.tensor(rows[:, -1], dtype=torch.long)


def on_digits(
    model: nn.Module,
    *,
    side: int,
    num_channels: int = 1,
    scores: Callable[..., torch.Tensor] = nn.Module.__call__,
) -> ZooParts:
    """Return the model with the digits as images of side x side, every fifth of them held out.

    scores: a function of model and images that returns (num_samples, num_classes).
    """
    pixels, labels = digits()
    images = pixels[:, None] / 16
    if side != images.shape[-1]:
        images = functional.interpolate(images, (side, side), mode="bilinear")
    images = images.repeat(1, num_channels, 1, 1)
    held_out = torch.arange(len(labels)) % HELD_OUT_EVERY == 0

    def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return functional.cross_entropy(scores(module, batch[0]), batch[1])

    def num_correct(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> int:
        return int((scores(module, batch[0]).argmax(1) == batch[1]).sum())

    return ZooParts(
        model=model,
        pool=(images[~held_out], labels[~held_out]),
        loss=loss,
        held_out=(images[held_out], labels[held_out]),
        num_correct=num_correct,
    )


class LowRank(nn.Module):  # type: ignore[misc] # torch is not followed
    """A frozen linear layer plus a trained low-rank product, which starts at zero.

    Source: Hu et al. 2021, equation 3: W x + (alpha / rank) B A x.
    """

    def __init__(self, frozen: nn.Linear, *, rank: int, alpha: float) -> None:
        """frozen: the layer that is replaced; its weights are kept but not trained."""
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features, device=frozen.weight.device))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank, device=frozen.weight.device))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the frozen layer's output plus the low-rank update."""
        changed: torch.Tensor = self.frozen(x) + self.scale * (x @ self.down.T @ self.up.T)
        return changed


def add_lora(model: nn.Module, names: tuple[str, ...], *, rank: int, alpha: float) -> None:
    """Freeze the model and add a trained low-rank update to each linear layer with one of these names."""
    model.requires_grad_(requires_grad=False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LowRank(child, rank=rank, alpha=alpha))


LARGE_NUM_CLASSES = 1000
IMAGE_SIDE = 224
MASKED_FRACTION = 0.15  # Devlin et al. 2018, section 3.1
IGNORED = -100  # the label that torch's cross entropy ignores


def _transformers() -> Any:  # noqa: ANN401 - a module
    """Return the optional package transformers, imported only when a model needs it."""
    return import_module("transformers")


def image_classifier(architecture: str, **sizes: Any) -> ZooParts:  # noqa: ANN401 - fields of its configuration
    """Return a classifier of transformers with random images. architecture: prefix of its class names."""
    config = getattr(_transformers(), f"{architecture}Config")(num_labels=LARGE_NUM_CLASSES, **sizes)
    model = getattr(_transformers(), f"{architecture}ForImageClassification")(config)
    images = torch.randn(NUM_RANDOM_SAMPLES, 3, IMAGE_SIDE, IMAGE_SIDE)
    labels = torch.randint(LARGE_NUM_CLASSES, (NUM_RANDOM_SAMPLES,))
    return ZooParts(model=model, pool=(images, labels), loss=_classification_loss)


def digits_mobilenet() -> ZooParts:
    """Return MobileNetV2 of width 1.0 on digits of 32 x 32 pixels, the minimum for its five halvings."""
    config = _transformers().MobileNetV2Config(num_labels=SMALL_NUM_CLASSES, image_size=32)
    model = _transformers().MobileNetV2ForImageClassification(config)
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            # transformers sets 0.997, with which the running statistics are those of the last small batch.
            each.momentum = 0.1
    return on_digits(
        model,
        side=32,
        num_channels=3,
        scores=lambda model, images: model(pixel_values=images).logits,
    )


def bert(num_tokens: int, **sizes: Any) -> ZooParts:  # noqa: ANN401 - as above
    """Return BERT with random text, some of whose tokens are to be predicted."""
    config = _transformers().BertConfig(**sizes)
    model = _transformers().BertForMaskedLM(config)
    tokens = _text(config.vocab_size, num_tokens=num_tokens)
    labels = tokens.clone()
    labels[torch.rand(labels.shape) >= MASKED_FRACTION] = IGNORED
    return ZooParts(model=model, pool=(tokens, labels), loss=_token_loss)


def llama(lora_rank: int = 0, **sizes: Any) -> ZooParts:  # noqa: ANN401 - as above
    """Return a Llama model with random text of its maximum length; input and output embeddings are shared.

    lora_rank: rank of trained updates to query and value projections; 0 to train all weights instead.
    """
    config = _transformers().LlamaConfig(tie_word_embeddings=True, use_cache=False, **sizes)
    tokens = _text(config.vocab_size, num_tokens=config.max_position_embeddings)
    model = _transformers().LlamaForCausalLM(config)
    if lora_rank:
        add_lora(model, ("q_proj", "v_proj"), rank=lora_rank, alpha=2 * lora_rank)
    return ZooParts(model=model, pool=(tokens, tokens), loss=_token_loss)


def _text(num_words: int, *, num_tokens: int) -> torch.Tensor:
    """Return random tokens (num_samples, num_tokens)."""
    return torch.randint(num_words, (NUM_RANDOM_SAMPLES, num_tokens))


def _classification_loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    images, labels = batch
    loss: torch.Tensor = nn.functional.cross_entropy(model(pixel_values=images).logits, labels)
    return loss


def _token_loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    tokens, labels = batch
    loss: torch.Tensor = model(input_ids=tokens, labels=labels).loss
    return loss
