"""One family of models that grows: `growing:mlp_WIDTH`, three hidden layers of WIDTH, 64 numbers in, 10 out.

Its work a sample and its parameters grow alike, so that a crossover is one of latency against both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

NUM_INPUTS, NUM_CLASSES = 64, 10
# Given once and repeated to the batch asked for: what is measured is training, not the drawing of numbers.
NUM_SAMPLES = 1024

_PREFIX = "mlp_"


def num_params(width: int) -> int:
    """Weights and biases."""
    return (NUM_INPUTS + 1) * width + 2 * (width + 1) * width + (width + 1) * NUM_CLASSES


def _mlp(width: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Any]:
    model = nn.Sequential(
        nn.Linear(NUM_INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, NUM_CLASSES),
    )
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, NUM_INPUTS, generator=drawn)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=drawn)
    return model, (inputs, labels), functional.cross_entropy


def __getattr__(name: str) -> Callable[[], Any]:
    """The function that makes the model of a width, as `module:function` names it."""
    if not name.startswith(_PREFIX) or not name.removeprefix(_PREFIX).isdigit():
        raise AttributeError(name)
    width = int(name.removeprefix(_PREFIX))
    return lambda: _mlp(width)
