"""A small network on scikit-learn's digits, trained by a loop of one's own: docs/get-started/own-loop.md."""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise.bench.watching.user_loop import Watch

BATCH_SAMPLES = 32
images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
images = images.float() / 16


def network() -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """The model, a batch, and its loss: what Equipoise counts."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    batch, answers = images[:BATCH_SAMPLES], labels[:BATCH_SAMPLES]
    return model, batch, lambda output: nn.functional.cross_entropy(output, answers)


def train() -> Watch:
    """Three epochs, watched."""
    model, _, _ = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH_SAMPLES, shuffle=True, drop_last=True)
    with equipoise.watch(model, name="digits:network", out="runs/mine") as seen:  # new
        for _ in range(3):
            for x, y in seen.batches(loader):  # new: around the loader
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return seen


if __name__ == "__main__":
    print(train().summary())
