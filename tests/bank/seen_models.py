"""Models of a user's own, named on the command line as `seen_models:gpt_304m`."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

HIDDEN, NUM_LAYERS, NUM_HEADS, NUM_WORDS, SEQUENCE = 1024, 20, 16, 50_304, 1024
BATCH = 32


class Block(nn.Module):
    """One layer of GPT-2 (Radford et al. 2019): attention, then an MLP of four times the width."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, sequence, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, sequence, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, HIDDEN))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A GPT whose output shares the weights of its embedding; it returns its loss."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, HIDDEN)
        self.places = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt_304m():
    """304,486,400 parameters, and the batch of 32 sequences that the user trains on."""
    return Gpt(), torch.zeros(BATCH, SEQUENCE, dtype=torch.long)


def small_mlp():
    """Steps that are launches of kernels alone, of which the model's priors know little."""
    return torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ), torch.zeros(32, 64)
