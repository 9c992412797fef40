"""Low-rank adaptation: frozen weights and a trained change of low rank."""

import math

import torch
from torch import nn


class LowRank(nn.Module):  # type: ignore[misc] # torch is not followed
    """A frozen linear layer plus a trained product of two thin matrices, which starts at zero.

    Source: Hu et al. 2021, equation 3: W x + (alpha / rank) B A x.
    """

    def __init__(self, frozen: nn.Linear, *, rank: int, alpha: float) -> None:
        """frozen: the layer that is replaced; its weights are kept and no longer trained."""
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features, device=frozen.weight.device))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank, device=frozen.weight.device))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output with the change."""
        changed: torch.Tensor = self.frozen(x) + self.scale * (x @ self.down.T @ self.up.T)
        return changed


def add_lora(model: nn.Module, names: tuple[str, ...], *, rank: int, alpha: float) -> None:
    """Freezes the model and gives each linear layer of one of these names a trained change."""
    model.requires_grad_(requires_grad=False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LowRank(child, rank=rank, alpha=alpha))
