"""Small models on real data: scikit-learn's handwritten digits, so that their loss means something."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from equipoise.bench.zoo.data import HELD_OUT_EVERY, Made

NUM_CLASSES = 10
HIDDEN = 256


def mlp() -> Made:
    """64 pixels, two hidden layers of 256, 10 digits."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, NUM_CLASSES),
    )
    return _on_digits(model, side=8)


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
    return _on_digits(model, side=28)


def _on_digits(model: nn.Module, *, side: int) -> Made:
    """The model with the digits as images of side x side, every fifth held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # pixels are 0..16
    if side != images.shape[-1]:
        images = functional.interpolate(images, (side, side), mode="bilinear")
    labels = torch.tensor(digits.target, dtype=torch.long)
    held_out = torch.arange(len(labels)) % HELD_OUT_EVERY == 0
    return Made(
        model=model,
        pool=(images[~held_out], labels[~held_out]),
        loss=_classified,
        held_out=(images[held_out], labels[held_out]),
    )


def _classified(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Mean cross entropy."""
    images, labels = batch
    loss: torch.Tensor = functional.cross_entropy(model(images), labels)
    return loss
