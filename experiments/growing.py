"""Two families of models that grow, three hidden layers of WIDTH each, 64 numbers in, 10 out.

`growing:mlp_WIDTH`: work a sample and parameters grow alike, so that a crossover is one of latency against
both. `growing:image_WIDTH`: the same network at every pixel of an image of WIDTH / 64 pixels a side, its
answers averaged: work grows as the square of the parameters, as where larger models are given larger images.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

NUM_INPUTS, NUM_CLASSES = 64, 10
# Given once and repeated to the batch asked for: what is measured is training, not the drawing of numbers.
NUM_SAMPLES = 1024

FAMILIES = ("mlp", "image")


def num_params(width: int) -> int:
    """Weights and biases."""
    return (NUM_INPUTS + 1) * width + 2 * (width + 1) * width + (width + 1) * NUM_CLASSES


class _Averaged(nn.Sequential):
    """What its modules say of each pixel, averaged."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Answers of shape (samples, classes), of pixels (samples, pixels, inputs)."""
        answers: torch.Tensor = super().forward(pixels)
        return answers.mean(dim=1)


def _made(family: str, width: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Any]:
    model = (nn.Sequential if family == "mlp" else _Averaged)(
        nn.Linear(NUM_INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, NUM_CLASSES),
    )
    drawn = torch.Generator().manual_seed(0)
    shape = (NUM_INPUTS,) if family == "mlp" else ((width // NUM_INPUTS) ** 2, NUM_INPUTS)
    inputs = torch.randn(NUM_SAMPLES, *shape, generator=drawn)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=drawn)
    return model, (inputs, labels), functional.cross_entropy


def __getattr__(name: str) -> Callable[[], Any]:
    """The function that makes the model of a width, as `module:function` names it."""
    family, _, width = name.partition("_")
    if family not in FAMILIES or not width.isdigit():
        raise AttributeError(name)
    return lambda: _made(family, int(width))
