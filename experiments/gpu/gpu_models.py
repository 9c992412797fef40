"""Six models in plain torch with random batches, and the same ones shrunken for machines without a GPU.

Each `module:function` returns model, batch and loss, as `plan` and `bench` take them: `gpu_models:gpt_small`.
Suffixes of tensors: B samples, T tokens or patches, D width, H heads, V words, C channels, S side.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from msgspec import Struct
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Callable[..., torch.Tensor]]
# Samples of the example batch, which bench repeats or cuts to the batch that is measured.
NUM_EXAMPLES = 2
IGNORED = -100  # the label that torch's cross entropy leaves out
MASKED_FRACTION = 0.15  # Devlin et al. 2018, section 3.1


class Block(nn.Module):
    """Attention and a feed-forward pair, each normalised first and added to its input.

    Source: Radford et al. 2019, section 2.3 (normalisation first); Vaswani et al. 2017.
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        """causal: whether a token sees only those before it."""
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:  # noqa: N803 - see the legend
        """The tokens after this layer."""
        num_samples, num_tokens, width = x_BTD.shape
        qkv = self.qkv(self.norm_attention(x_BTD)).view(num_samples, num_tokens, 3, self.heads, -1)
        q_BHTD, k_BHTD, v_BHTD = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # noqa: N806 - see the legend
        seen = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=self.causal)
        x_BTD = x_BTD + self.out(seen.transpose(1, 2).reshape(num_samples, num_tokens, width))  # noqa: N806
        return x_BTD + self.down(functional.gelu(self.up(self.norm_mlp(x_BTD))))


class Language(nn.Module):
    """A transformer over words, whose table of words gives its output too."""

    def __init__(self, layers: int, width: int, heads: int, *, words: int, tokens: int, causal: bool) -> None:
        """tokens: of a sample."""
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        # Rows of the usual unit variance would make logits of a tied table overflow narrow precisions.
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, words_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803 - see the legend
        """Logits: (B, T, V)."""
        x_BTD = self.words(words_BT) + self.places.weight[: words_BT.shape[1]]  # noqa: N806 - see the legend
        for block in self.blocks:
            x_BTD = block(x_BTD)  # noqa: N806 - see the legend
        return functional.linear(self.norm(x_BTD), self.words.weight)


def word_loss(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803 - see the legend
    """Mean cross entropy of words."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORED)


def gpt(layers: int, width: int, heads: int, *, words: int = 50_304, tokens: int = 1024) -> Made:
    """A decoder; by default GPT-2's context, and its words up to a multiple of 64."""
    model = Language(layers, width, heads, words=words, tokens=tokens, causal=True)
    given = torch.randint(words, (NUM_EXAMPLES, tokens + 1))
    return model, (given[:, :-1].contiguous(), given[:, 1:].contiguous()), word_loss


def encoder(layers: int, width: int, heads: int, *, words: int = 30_522, tokens: int = 128) -> Made:
    """An encoder that restores masked words; by default BERT's words, and the tokens of most of its steps."""
    model = Language(layers, width, heads, words=words, tokens=tokens, causal=False)
    given = torch.randint(words, (NUM_EXAMPLES, tokens))
    labels = given.masked_fill(torch.rand(given.shape) >= MASKED_FRACTION, IGNORED)
    labels[:, 0] = given[:, 0]  # none masked would leave no loss
    return model, (given, labels), word_loss


class VisionTransformer(nn.Module):
    """Patches of an image through a transformer; classes from their mean.

    Source: Dosovitskiy et al. 2020; the mean in place of a token of its own: Zhai et al. 2021.
    """

    def __init__(self, layers: int, width: int, heads: int, *, side: int, patch: int) -> None:
        """side, patch: pixels."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.zeros((side // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images_BCSS: torch.Tensor) -> torch.Tensor:  # noqa: N803 - see the legend
        """Logits of classes."""
        x_BTD = self.patches(images_BCSS).flatten(2).transpose(1, 2) + self.places  # noqa: N806 - see the legend
        for block in self.blocks:
            x_BTD = block(x_BTD)  # noqa: N806 - see the legend
        return self.head(self.norm(x_BTD).mean(dim=1))


def _on_images(model: nn.Module, side: int) -> Made:
    images = torch.randn(NUM_EXAMPLES, 3, side, side)
    return model, (images, torch.randint(1000, (NUM_EXAMPLES,))), functional.cross_entropy


def vit(layers: int, width: int, heads: int, *, side: int = 224, patch: int = 16) -> Made:
    """A vision transformer of 1,000 classes."""
    return _on_images(VisionTransformer(layers, width, heads, side=side, patch=patch), side)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions added to their input. Source: He et al. 2015, figure 5."""

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        """channels: of the middle; four times as many leave."""
        super().__init__()
        out = 4 * channels
        self.change = nn.Sequential(
            *(
                nn.Conv2d(channels_in, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ),
            nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(channels), nn.ReLU(inplace=True)),
            *(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        is_same = channels_in == out and stride == 1
        projection = (nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*projection)

    def forward(self, x_BCSS: torch.Tensor) -> torch.Tensor:  # noqa: N803 - see the legend
        """Four times the middle's channels."""
        return functional.relu(self.change(x_BCSS) + self.shortcut(x_BCSS))


def resnet(depths: Sequence[int], *, channels: int = 64, side: int = 224) -> Made:
    """Bottlenecks in four stages; 3, 4, 6 and 3 are ResNet-50 (He et al. 2015, table 1)."""
    stem = (nn.Conv2d(3, channels, 7, 2, padding=3, bias=False), nn.BatchNorm2d(channels))
    layers: list[nn.Module] = [*stem, nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    width = channels
    for stage, depth in enumerate(depths):
        middle = channels * 2**stage
        for place in range(depth):
            layers.append(Bottleneck(width, middle, stride=2 if stage and not place else 1))
            width = 4 * middle
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))
    return _on_images(nn.Sequential(*layers, *head), side)


def mlp(hidden: int, layers: int, *, inputs: int = 1024, classes: int = 1000) -> Made:
    """Dense layers of one width."""
    widths = [inputs, *[hidden] * layers]
    dense = [each for pair in pairwise(widths) for each in (nn.Linear(*pair), nn.ReLU())]
    batch = (torch.randn(NUM_EXAMPLES, inputs), torch.randint(classes, (NUM_EXAMPLES,)))
    return nn.Sequential(*dense, nn.Linear(hidden, classes)), batch, functional.cross_entropy


class Subject(Struct, frozen=True, kw_only=True):
    """A model that is predicted and measured. name: of a function of this module. batches: two, of a step."""

    name: str
    title: str
    batches: tuple[int, int]

    @property
    def reference(self) -> str:
        """As `plan` and `bench` take it."""
        return f"{__name__.rpartition('.')[2]}:{self.name}"


gpt_small = partial(gpt, 12, 768, 12)
gpt_medium = partial(gpt, 24, 1024, 16)
bert_base = partial(encoder, 12, 768, 12)
vit_base = partial(vit, 12, 768, 12)
resnet50 = partial(resnet, (3, 4, 6, 3))
wide_mlp = partial(mlp, 4096, 8)
SUBJECTS = (
    Subject(name="gpt_small", title="GPT, 12 x 768, 1,024 tokens", batches=(4, 16)),
    Subject(name="resnet50", title="ResNet-50, 224 x 224", batches=(32, 128)),
    Subject(name="bert_base", title="encoder, 12 x 768, 128 tokens", batches=(32, 128)),
    Subject(name="gpt_medium", title="GPT, 24 x 1,024, 1,024 tokens", batches=(2, 8)),
    Subject(name="vit_base", title="ViT-B/16, 224 x 224", batches=(16, 64)),
    Subject(name="wide_mlp", title="MLP, 8 x 4,096", batches=(512, 4096)),
)

tiny_gpt_small = partial(gpt, 2, 64, 2, words=256, tokens=32)
tiny_gpt_medium = partial(gpt, 4, 96, 4, words=256, tokens=32)
tiny_bert_base = partial(encoder, 2, 64, 2, words=256, tokens=16)
tiny_vit_base = partial(vit, 2, 64, 2, side=32, patch=8)
tiny_resnet50 = partial(resnet, (1, 1, 1, 1), channels=8, side=32)
tiny_wide_mlp = partial(mlp, 64, 3, inputs=64, classes=10)
SHRUNKEN = tuple(
    Subject(name=f"tiny_{each.name}", title=f"shrunken {each.title.partition(',')[0]}", batches=(4, 8))
    for each in SUBJECTS
)
