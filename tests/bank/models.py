"""The models of somebody's own that questions of the bank ask about: `tests.bank.models:gpt_304m` and so on.

Each function returns a model and an example batch, as docs/decide/models.md describes; nothing here is ever trained.
"""

import torch
from torch import nn
from torch.nn import functional

BATCH_SAMPLES = 32


class _Block(nn.Module):
    """One pre-norm transformer layer with causal attention."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        samples, tokens, hidden = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(samples, tokens, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(samples, tokens, hidden))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class _Gpt(nn.Module):
    """A GPT with learned positions; the output layer shares the weights of the embedding."""

    def __init__(self, vocabulary, max_tokens, hidden, heads, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(max_tokens, hidden)
        self.blocks = nn.ModuleList(_Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.output = nn.Linear(hidden, vocabulary, bias=False)
        self.output.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def _next_token_loss(output, target):
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _gpt(batch_samples, layers=20, max_tokens=1024):
    model = _Gpt(vocabulary=50_257, max_tokens=max_tokens, hidden=1024, heads=16, layers=layers)
    tokens = torch.zeros(batch_samples, max_tokens, dtype=torch.long)
    return model, (tokens, tokens), _next_token_loss


def gpt_304m():
    """304 M parameters, 1,024 tokens a sample, 32 samples a step."""
    return _gpt(BATCH_SAMPLES)


def gpt_304m_batch_4():
    """The same with 4 samples a step: too few for eight accelerators by data parallelism alone."""
    return _gpt(4)


def small_cnn():
    """Three convolutions for images of 32 x 32 pixels, 32 samples a step."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 8 * 8, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    images, labels = torch.zeros(BATCH_SAMPLES, 3, 32, 32), torch.zeros(BATCH_SAMPLES, dtype=torch.long)
    return model, (images, labels), functional.cross_entropy


def raises():
    """A function of the user's that fails."""
    message = "no data here"
    raise RuntimeError(message)
