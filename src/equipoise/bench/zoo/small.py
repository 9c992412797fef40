"""Small models on real data: scikit-learn's handwritten digits, so that their loss means something."""

import gzip
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from equipoise.bench.zoo.data import HELD_OUT_EVERY, Made

NUM_CLASSES = 10


class Residual(nn.Module):  # type: ignore[misc] # torch is not followed
    """Two convolutions of 3 x 3 whose output is added to the input, halved and widened where they differ.

    Source: He et al. 2015, figure 2; the projection of equation 2 where the shape changes.
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
        """(num_samples, channels_out, side / stride, side / stride)."""
        return functional.relu(self.shortcut(x) + self.change(x))


def mlp() -> Made:
    """64 pixels, two hidden layers of 256, 10 digits."""
    return _mlp(256)


def wide_mlp() -> Made:
    """64 pixels, two hidden layers of 768, 10 digits."""
    return _mlp(768)


def large_mlp() -> Made:
    """64 pixels, two hidden layers of 1,920, 10 digits."""
    return _mlp(1920)


def _mlp(hidden: int) -> Made:
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, NUM_CLASSES),
    )
    return on_digits(model, side=8)


def small_resnet() -> Made:
    """One block a width: 64, 128, 256 channels on 8 x 8, 4 x 4, 2 x 2 pixels."""
    model = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        Residual(64, 64, stride=1),
        Residual(64, 128, stride=2),
        Residual(128, 256, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, NUM_CLASSES),
    )
    return on_digits(model, side=8)


def small_cnn() -> Made:
    """The network of torch's MNIST example, whose images have 28 x 28 pixels."""
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
        nn.Linear(128, NUM_CLASSES),
    )
    return on_digits(model, side=28)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images of (num_samples, 8, 8) pixels from 0 to 16, and which digit each shows.

    Read from scikit-learn's file where it is: importing its reader takes every rank of every run a second.
    """
    spec = find_spec("sklearn")
    path = Path(str(spec and spec.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    if path.exists():
        with gzip.open(path, "rt") as file:
            rows = np.loadtxt(file, delimiter=",")
    else:  # another layout of that package
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
) -> Made:
    """The model with the digits as images of side x side, every fifth held out.

    scores: of model and images: (num_samples, num_classes).
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

    return Made(
        model=model,
        pool=(images[~held_out], labels[~held_out]),
        loss=loss,
        held_out=(images[held_out], labels[held_out]),
        num_correct=num_correct,
    )
