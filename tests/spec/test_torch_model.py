"""Counts of torch models: published figures, laws, and what a real step on the CPU keeps."""

import doctest
import math
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import SpecError, UsageError
from equipoise.perfmodel.load import workload_load
from equipoise.spec.torch_model import count, count_function, load_factory
from equipoise.spec.transformer import Transformer
from equipoise.spec.workload import workload

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'equipoise[torch]'")
from torch import nn  # noqa: E402 - after the skip
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

FLOAT_BYTES = 4


# Models written from their papers.


class Bottleneck(nn.Module):
    """He et al. 2016, figure 5 right; the stride sits on the 3 x 3, as in every published count of 4.1 GMAC."""

    def __init__(self, given, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.short = nn.Identity()
        if given != 4 * width:
            self.short = nn.Sequential(
                nn.Conv2d(given, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x), inplace=True)


def resnet50():
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    given = 64
    for stage, num_blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(num_blocks):
            layers.append(Bottleneck(given, width, 2 if block == 0 and stage else 1))
            given = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class BertLarge(nn.Module):
    """Devlin et al. 2019: 24 layers, 1024 wide, 16 heads, vocabulary 30,522, 512 positions, 2 segments."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30522, 1024)
        self.positions = nn.Embedding(512, 1024)
        self.segments = nn.Embedding(2, 1024)
        self.norm = nn.LayerNorm(1024)
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        self.pooler = nn.Linear(1024, 1024)

    def forward(self, tokens, segments):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(positions) + self.segments(segments))
        x = self.encoder(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class LlamaLayer(nn.Module):
    """Touvron et al. 2023: RMSNorm, grouped queries, SwiGLU, no biases."""

    def __init__(self, hidden, heads, kv_heads, ffn_hidden):
        super().__init__()
        self.head_size = hidden // heads
        self.attention_norm = nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.value = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, ffn_hidden, bias=False)
        self.up = nn.Linear(hidden, ffn_hidden, bias=False)
        self.down = nn.Linear(ffn_hidden, hidden, bias=False)

    def forward(self, x, turn):
        y = self.attention_norm(x)
        split = [
            each(y).unflatten(2, (-1, self.head_size)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        ]
        query, key = (each * turn + each.roll(1, -1) * (1 - turn) for each in split[:2])
        attended = F.scaled_dot_product_attention(query, key, split[2], is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, *, layers=80, hidden=8192, heads=64, kv_heads=8, ffn_hidden=28672, vocabulary=32000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(LlamaLayer(hidden, heads, kv_heads, ffn_hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        turn = torch.linspace(0, 1, tokens.shape[1], dtype=x.dtype)[:, None]
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x))


def next_token_loss(logits, tokens):
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def tiny_llama():
    return Llama(layers=3, hidden=64, heads=4, kv_heads=2, ffn_hidden=160, vocabulary=96)


# Published counts.


@cache
def counted_resnet_50():
    return count(resnet50, torch.empty(2, 3, 224, 224, device="meta"))


@cache
def counted_bert_large():
    tokens = torch.zeros(2, 128, dtype=torch.long)
    return count(BertLarge, {"tokens": tokens, "segments": tokens})


@pytest.mark.truth
def test_resnet_50_is_counted_as_published():
    counted = counted_resnet_50()
    assert counted.params == 25_557_032  # torchvision's documentation of ResNet50_Weights
    assert counted.forward_flop_per_sample / 2e9 == pytest.approx(4.09, rel=0.005)  # ibid., "GFLOPS" of 4.09
    # The first convolution, 0.118 GMAC, needs no gradient of its input.
    assert counted.train_flop_per_sample / 2e9 == pytest.approx(3 * 4.089 - 0.118, rel=0.001)


@pytest.mark.truth
def test_bert_large_is_counted_as_published():
    counted = counted_bert_large()
    assert counted.params == 335_141_888  # bert-large-uncased without its output layers; the paper says 340 M
    # Narayanan et al. 2021, formula 3, forward, without logits.
    per_token = 24 * (24 * 1024**2 + 4 * 128 * 1024)
    assert counted.forward_flop_per_sample == pytest.approx(128 * per_token + 2 * 1024**2, rel=1e-6)


@pytest.mark.truth
def test_llama_2_70b_is_counted_as_published_and_takes_no_memory():
    tokens = torch.zeros(1, 2048, dtype=torch.long)

    def build():
        return Llama().to(torch.bfloat16)

    counted = count(build, (tokens, tokens), loss=next_token_loss)
    assert counted.params == 68_976_648_192  # meta-llama/Llama-2-70b-hf, safetensors metadata
    assert counted.params_by_dtype == (("bfloat16", 68_976_648_192),)
    assert counted.train_flop_per_sample / 2048 == pytest.approx(
        6 * counted.params, rel=0.03
    )  # Kaplan et al. 2020
    # By hand, in units of tokens x hidden, 2 bytes each: both norms' inputs and outputs; query, an eighth of it for
    # each of key and value, attention's output; gate, its silu, up and the product, each 3.5 wide.
    layer = 2 * (2 + 2 + 1 + 1 / 8 + 1 / 8 + 1 + 4 * 3.5)
    sums = 4 * 64 / 8192  # of attention, one fp32 a head and token
    end = 2 * 2 + 4 * 32000 / 8192  # the last norm's input and output, and fp32 log-probabilities
    kept_bytes = (80 * (layer + sums) + end) * 2048 * 8192
    assert counted.activation_bytes_per_sample == pytest.approx(kept_bytes, rel=1e-4)
    assert counted.narrowest_cut.boundary_bytes == 2048 * 8192 * 2


@pytest.mark.truth
def test_resnet_50_as_a_workload_has_the_figures_of_the_catalogue():
    """The catalogue's were counted on torchvision, by other means."""
    own = counted_resnet_50().workload("own", "Own")
    known = workload("resnet50")
    assert own.params == pytest.approx(known.params, rel=0.01)
    assert own.layers == known.layers
    assert own.transformer is None
    for figure in ("forward_flop_per_sample", "activation_bytes_per_sample", "boundary_bytes_per_sample"):
        assert getattr(own, figure) == pytest.approx(getattr(known, figure), rel=0.01)
    assert own.train_flop_per_sample == pytest.approx(known.train_flop_per_sample, rel=0.02)


# What a real step keeps and does.


def kept_bytes(model, example, loss):
    """Bytes of the storages that a real forward pass saves for its backward pass, weights not counted."""
    storages = {}
    weights = {weight.untyped_storage().data_ptr() for weight in [*model.parameters(), *model.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = loss(model, example)
    total_bytes = sum(num_bytes for num_bytes, _ in storages.values())
    out.backward()
    return total_bytes


def summed(model, example):
    return model(example).sum()


SMALL = {
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(8 * 36, 10),
        ),
        lambda: torch.randn(4, 3, 16, 16),
    ),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 3)),
        lambda: torch.randn(5, 7),
    ),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        lambda: torch.randn(3, 9, 32),
    ),
    "embedding bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(50, 16), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1)),
        lambda: torch.randint(0, 50, (6, 5)),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(2, 6, 3, 2, groups=2), nn.Sigmoid(), nn.GroupNorm(2, 6), nn.Dropout2d(0.0)
        ),
        lambda: torch.randn(2, 2, 5, 5),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_activations_are_those_that_a_real_forward_pass_saves(name):
    build, batch = SMALL[name]
    model, example = build(), batch()
    counted = count(model, example)
    # The sum that stands for a loss here keeps nothing; the bag keeps one number more on a CPU than its shapes say.
    assert counted.activation_bytes == pytest.approx(kept_bytes(model, example, summed), abs=8)


@pytest.mark.filterwarnings("ignore:TF32")
def test_activations_of_a_recurrent_model_are_those_that_torchs_own_loop_saves():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    model, example = Recurrent(), torch.randn(3, 5, 6)
    counted = count(model, example)
    with torch.backends.mkldnn.flags(enabled=False):
        assert counted.activation_bytes == kept_bytes(model, example, summed)
    per_step = 2 * 3 * 4 * 8 * (6 + 8) + 2 * 3 * 4 * 8 * (
        8 + 8
    )  # four gates, from input and state, two layers
    assert counted.forward_flop == 5 * per_step


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count(model, torch.randn(6, 4))
    after = model.state_dict()
    assert len(after) == 7  # two weights, two biases, and the mean, variance and count of the norm
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert [weight.grad for weight in model.parameters()] == [None] * 4
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_real_meta_and_built_models_count_the_same():
    example = torch.randn(2, 8)

    def build():
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    with torch.device("meta"):
        on_meta = build()
    assert count(build(), example) == count(on_meta, example) == count(build, example.to("meta"))


# Laws.


@pytest.mark.law
@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=6),
    num_samples=st.integers(1, 9),
)
def test_linear_layers_cost_three_times_their_forward_but_for_the_first_input(sizes, num_samples):
    layers = [nn.Linear(given, out, bias=False, device="meta") for given, out in pairwise(sizes)]
    counted = count(nn.Sequential(*layers), torch.empty(num_samples, sizes[0], device="meta"))
    forward = 2 * num_samples * sum(given * out for given, out in pairwise(sizes))
    first = 2 * num_samples * sizes[0] * sizes[1]
    assert counted.forward_flop == forward
    assert counted.backward_flop == 2 * forward - first
    assert counted.params == forward // (2 * num_samples)


@pytest.mark.law
@settings(max_examples=3, deadline=None)
@given(num_samples=st.integers(1, 6), sequence=st.integers(2, 12))
def test_twice_the_batch_is_twice_the_work(num_samples, sequence):
    def of(num_samples):
        tokens = torch.zeros(num_samples, sequence, dtype=torch.long, device="meta")
        return count(tiny_llama, (tokens, tokens), loss=next_token_loss)

    once, twice = of(num_samples), of(2 * num_samples)
    assert twice.forward_flop == 2 * once.forward_flop
    assert twice.backward_flop == 2 * once.backward_flop
    assert twice.train_flop_per_sample == once.train_flop_per_sample
    assert twice.fixed_activation_bytes == once.fixed_activation_bytes
    assert twice.activation_bytes_per_sample == pytest.approx(once.activation_bytes_per_sample, rel=1e-3)
    assert twice.num_forward_kernels == once.num_forward_kernels
    assert [bucket.grad_bytes for bucket in twice.buckets] == [bucket.grad_bytes for bucket in once.buckets]


@pytest.mark.parametrize(("kind", "num_steps", "expected"), [("LSTM", 9, 16), ("GRU", 5, 8), ("RNN", 1, 0)])
def test_a_recurrent_layer_multiplies_by_its_state_matrix_once_a_step(kind, num_steps, expected):
    # Of two layers, one matrix each; that of the inputs is in one product over all steps.
    model = nn.Sequential(getattr(nn, kind)(6, 8, num_layers=2, batch_first=True))
    counted = count(model, torch.zeros(3, num_steps, 6))
    assert counted.num_repeated_products == expected
    assert count(nn.TransformerEncoderLayer(8, 2, 16), torch.zeros(3, 4, 8)).num_repeated_products == 0


@pytest.mark.law
def test_layers_sum_to_the_whole():
    tokens = torch.zeros(2, 7, dtype=torch.long)
    counted = count(tiny_llama(), (tokens, tokens), loss=next_token_loss)
    for figure in ("params", "forward_flop", "backward_flop", "activation_bytes"):
        assert sum(getattr(layer, figure) for layer in counted.layers) == getattr(counted, figure)
    num_kernels = counted.num_forward_kernels + counted.num_backward_kernels
    assert sum(layer.num_kernels for layer in counted.layers) == num_kernels
    assert counted.params == sum(weight.numel() for weight in tiny_llama().parameters())
    assert sum(bucket.grad_bytes for bucket in counted.buckets) == FLOAT_BYTES * counted.params


@pytest.mark.law
def test_work_goes_to_the_layer_that_causes_it_on_the_way_back_too():
    tokens = torch.zeros(2, 7, dtype=torch.long)
    counted = count(tiny_llama(), (tokens, tokens), loss=next_token_loss)
    products = [layer for layer in counted.layers if layer.kind == "Linear"]
    assert len(products) == 3 * 7 + 1  # each layer has seven, and there is the head
    assert all(layer.backward_flop == 2 * layer.forward_flop > 0 for layer in products)
    assert [layer.name for layer in counted.largest_layers("forward_flop", 2)] == [
        "layers.0.gate",
        "layers.0.up",
    ]
    with pytest.raises(UsageError, match="activation_bytes"):
        counted.largest_layers("flops", 2)


# Transformers.


def test_a_transformer_is_recognised_by_its_sizes():
    model = Llama(layers=5, hidden=128, heads=8, kv_heads=2, ffn_hidden=320, vocabulary=1000)
    tokens = torch.zeros(2, 64, dtype=torch.long)
    own = count(model, (tokens, tokens), loss=next_token_loss).workload("own", "Own")
    assert own.transformer == Transformer(
        layers=5, hidden=128, heads=8, kv_heads=2, head_size=16, ffn_hidden=320, vocabulary=1000, gated=True
    )
    assert (own.area, own.sequence_tokens) == ("language", 64)
    assert own.params == pytest.approx(own.transformer.params, rel=0.01)


def test_bert_large_is_recognised():
    # Its output matrix is missing there: a token's logits are 17 % of its FLOP.
    assert counted_bert_large().workload("own", "Own").transformer is None

    class Predicting(BertLarge):
        def forward(self, tokens, segments):
            return super().forward(tokens, segments)[0] @ self.tokens.weight.T

    tokens = torch.zeros(1, 64, dtype=torch.long)
    found = count(Predicting, {"tokens": tokens, "segments": tokens}).workload("own", "Own").transformer
    assert (found.layers, found.hidden, found.heads, found.ffn_hidden) == (24, 1024, 16, 4096)
    assert (found.vocabulary, found.position_embeddings) == (30522, 514)  # positions and two segments
    assert found.tied_embeddings
    assert not found.causal
    assert not found.gated


@pytest.mark.parametrize("change", ["second attention", "no attention"])
def test_a_model_that_sizes_do_not_describe_is_no_transformer(change):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = tiny_llama()
            self.more = nn.Linear(96, 3000, bias=False)

        def forward(self, tokens):
            x = self.body(tokens)
            if change == "second attention":
                x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
            return self.more(x)

    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16)) if change == "no attention" else Other()
    own = count(model, torch.zeros(2, 9, dtype=torch.long)).workload("own", "Own")
    assert own.transformer is None
    assert own.sequence_tokens is None


# Kinds of training.


def test_frozen_weights_cost_no_gradient():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.ReLU(), nn.Linear(10, 10, bias=False))
    model[0].requires_grad_(requires_grad=False)
    counted = count(model, torch.randn(4, 10))
    assert (counted.params, counted.trainable_params) == (200, 100)
    assert counted.backward_flop == 2 * 4 * 100  # the second layer's weight only
    assert counted.activation_bytes == 4 * 10 * FLOAT_BYTES  # its input only
    assert sum(bucket.grad_bytes for bucket in counted.buckets) == 100 * FLOAT_BYTES


def test_an_adapter_costs_the_gradients_of_activations_but_not_of_frozen_weights():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(64, 64, bias=False).requires_grad_(requires_grad=False)
            self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

        def forward(self, x):
            return self.frozen(x) + self.up(self.down(x))

    counted = count(nn.Sequential(Adapted(), Adapted()), torch.randn(3, 64))
    frozen, adapter = 2 * 3 * 64 * 64, 2 * 3 * 64 * 2 * 2
    assert counted.trainable_params == 2 * 2 * 64 * 2
    assert counted.workload("own", "Own").lora_rank == 2
    # The second frozen layer passes a gradient on, the first has nobody to pass it to; nor has the first's `down`.
    assert counted.backward_flop == frozen + 2 * (2 * adapter) - adapter // 2


@cache
def classifier(num_frozen):
    """Twelve equal layers of BERT-base's sizes, the first of them frozen, and ten classes."""
    with torch.device("meta"):
        layers = [nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12)]
        for layer in layers[:num_frozen]:
            layer.requires_grad_(requires_grad=False)
        return count(nn.Sequential(*layers, nn.Linear(768, 10)), torch.zeros(8, 512, 768))


@pytest.mark.parametrize("num_frozen", [0, 6, 8, 12])
def test_frozen_layers_are_passed_forward_and_keep_no_states(num_frozen):
    counted = classifier(num_frozen)
    own = counted.workload("own", "Own")
    load = workload_load(own)
    # A layer has 4 x 768^2 + 2 x 768 x 3072 weights in matrices, and 13 x 768 besides.
    frozen = num_frozen * (12 * 768**2 + 13 * 768)
    assert (own.trained, own.lora_rank) == ("full", None)
    assert load.frozen_params == frozen
    assert load.params == pytest.approx(counted.params - frozen, rel=0.01)
    assert own.train_flop_per_sample == pytest.approx(counted.train_flop_per_sample)
    # Of three ways' work a frozen layer does one.
    whole = workload_load(classifier(0).workload("own", "Own"))
    assert load.train_flop_per_sample / whole.train_flop_per_sample == pytest.approx(
        1 - 2 / 3 * num_frozen / 12, abs=0.03
    )


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            return self.head(self.tokens(tokens))

    counted = count(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert counted.params == 160
    assert [layer.params for layer in counted.layers] == [160, 0]
    assert [(bucket.grad_bytes, bucket.num_tensors) for bucket in counted.buckets] == [(160 * FLOAT_BYTES, 1)]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_keeps_its_input_and_computes_twice(use_reentrant):
    class Deep(nn.Module):
        def __init__(self, *, saves):
            super().__init__()
            self.saves = saves
            self.first = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU()) for _ in range(3)
            )

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=use_reentrant) if self.saves else block(x)
            return x

    example = torch.randn(500, 8)
    plain, saving = count(Deep(saves=False), example), count(Deep(saves=True), example)
    # The batch, which the first layer needs, and the input of each block: 4 of 500 x 8 numbers.
    assert saving.activation_bytes == 4 * 500 * 8 * FLOAT_BYTES
    assert saving.recompute_flop == 3 * 2 * (2 * 500 * 8 * 32)
    assert saving.train_flop_per_sample == plain.train_flop_per_sample
    assert saving.backward_flop - saving.recompute_flop == plain.backward_flop
    assert saving.peak_bytes < plain.peak_bytes
    assert plain.recompute_flop == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_runs_the_same_kernels_again(use_reentrant):
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.norm, self.out = nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 8)

        def part(self, x):
            x = F.dropout(self.norm(x), 0.1)
            return self.out(F.scaled_dot_product_attention(x, x, x))

        def forward(self, x):
            return checkpoint(self.part, self.into(x), use_reentrant=use_reentrant)

    counted = count(Saving(), torch.randn(2, 4, 16, 8))
    # Norm, dropout, attention; the reentrant kind also does the last product, which nobody needs again.
    attention_flop = 2 * 2 * 2 * 4 * 16 * 16 * 8
    assert counted.recompute_flop == attention_flop + use_reentrant * 2 * 2 * 4 * 16 * 8 * 8


def test_dropout_keeps_one_byte_a_number_and_none_when_evaluated():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))
    example = torch.randn(10, 8)
    training, evaluated = count(model.train(), example), count(model.eval(), example)
    assert training.activation_bytes - evaluated.activation_bytes == 10 * 8
    assert training.num_forward_kernels == 3
    assert evaluated.num_forward_kernels == 2


@pytest.mark.parametrize("with_mask", [False, True])
def test_attention_is_one_kernel_without_a_matrix_of_scores(with_mask):
    class Attention(nn.Module):
        def forward(self, query, key, value, mask=None):
            return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.1)

    shape = (2, 4, 256, 16)
    batch = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    if with_mask:
        batch.append(torch.zeros(2, 1, 256, 256))
    counted = count(Attention(), tuple(batch))
    assert counted.forward_flop == 2 * 2 * math.prod(shape) * 256
    assert counted.backward_flop == 2.5 * counted.forward_flop
    mask_bytes = 2 * 256 * 256 * FLOAT_BYTES if with_mask else 0
    sums_bytes = 2 * 4 * 256 * FLOAT_BYTES
    assert counted.activation_bytes == 4 * math.prod(shape) * FLOAT_BYTES + sums_bytes + mask_bytes
    assert counted.num_forward_kernels == 1


def test_attention_inside_torchs_own_layer_is_one_kernel_too():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    example = torch.randn(3, 100, 32)
    counted = count(layer, example)
    assert [(call.heads, call.head_size, call.num_keys) for call in counted.attention] == [(4, 8, 100)]
    scores_bytes = 3 * 4 * 100 * 100 * FLOAT_BYTES
    assert max(layer.activation_bytes for layer in counted.layers) < scores_bytes
    assert nn.functional.dropout(torch.ones(1000), 0.5).sum() > 0  # torch's own is back
    assert nn.functional.dropout.__module__ == "torch.nn.functional"


@pytest.mark.parametrize("heads", [4, 2])
def test_a_mask_that_learns_gets_its_gradient(heads):
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1, 4, 64, 64))

        def forward(self, query, key):
            return F.scaled_dot_product_attention(query, key, key, self.bias, enable_gqa=True)

    shape = (2, heads, 64, 16)
    query, key = torch.randn(2, 4, 64, 16, requires_grad=True), torch.randn(shape, requires_grad=True)
    counted = count(Biased(), (query, key))
    assert sum(bucket.num_tensors for bucket in counted.buckets) == 1
    assert counted.forward_flop == 2 * 2 * 2 * 4 * 64 * 64 * 16
    assert counted.backward_flop == 2.5 * counted.forward_flop


def test_attention_with_narrower_values_returns_them():
    class Latent(nn.Module):
        def forward(self, query, key, value):
            return F.scaled_dot_product_attention(query, key, value)

    query, key, value = (torch.randn(3, 20, size, requires_grad=True) for size in (24, 24, 16))
    counted = count(Latent(), (query, key, value))
    assert counted.forward_flop == 2 * 3 * 20 * 20 * (24 + 16)


def test_depthwise_convolutions_cost_twice_their_forward_on_the_way_back():
    model = nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32))
    counted = count(model, torch.randn(2, 3, 10, 10))
    depthwise = counted.layers[-1]
    assert depthwise.forward_flop == 2 * 2 * 32 * 100 * 9
    assert depthwise.backward_flop == 2 * depthwise.forward_flop


def test_an_output_with_a_loss_is_trained_on_it():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x, labels):
            logits = self.body(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits, "spare": self.unused(logits)}

    counted = count(Own(), {"x": torch.randn(5, 6), "labels": torch.zeros(5, dtype=torch.long)})
    assert sum(bucket.num_tensors for bucket in counted.buckets) == 2
    assert counted.backward_flop == 2 * 5 * 6 * 4
    assert counted.num_samples == 5


# Cuts, buckets.


def test_the_cut_of_a_residual_net_carries_both_branches():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

        def forward(self, x):
            return x + self.down(self.up(x))

    model = nn.Sequential(nn.Linear(8, 8), *(Residual() for _ in range(4)))
    counted = count(model, torch.randn(2, 8))
    crossing = {cut.after: cut.boundary_bytes for cut in counted.cuts}
    assert crossing["1"] == 2 * 8 * FLOAT_BYTES
    assert crossing["1.up"] == 2 * (8 + 32) * FLOAT_BYTES
    assert counted.narrowest_cut.boundary_bytes == 2 * 8 * FLOAT_BYTES


def test_buckets_are_those_that_torch_forms():
    sizes = [300, 2000, 1500, 700, 3000, 100]
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    counted = count(model, torch.randn(2, 300))
    limits = [2**20, 25 * 2**20]
    ready = list(model.parameters())[::-1]
    formed, _ = torch.distributed._compute_bucket_assignment_by_size(ready, limits, [False] * len(ready))
    assert [bucket.num_tensors for bucket in counted.buckets] == [len(indices) for indices in formed]
    assert [bucket.grad_bytes for bucket in counted.buckets] == [
        sum(ready[index].numel() * FLOAT_BYTES for index in indices) for indices in formed
    ]
    assert counted.buckets[-1].ready_fraction == 1


def test_elementwise_operations_have_no_flop():
    counted = count(nn.ReLU(), torch.randn(10, 10, requires_grad=True))
    assert counted.forward_flop == counted.backward_flop == 0


# A user's own function.


def write_module(tmp_path, monkeypatch, name, text):
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_users_function_is_found_in_the_current_directory(tmp_path, monkeypatch):
    text = "import torch\ndef made():\n    return torch.nn.Linear(3, 2), (torch.randn(4, 3), torch.randn(4, 2)), torch.nn.MSELoss()\n"
    write_module(tmp_path, monkeypatch, "counted_training", text)
    counted = count_function("counted_training:made")
    assert (counted.params, counted.num_samples, counted.forward_flop) == (8, 4, 48)
    assert counted.layers[-1].kind == "MSELoss"


def test_a_users_function_that_names_an_accelerator_is_counted_without_one(tmp_path, monkeypatch):
    text = "import torch\ndef made():\n    return torch.nn.Linear(3, 2).cuda(), torch.randn(4, 3, device='cuda:0').to('cuda')\n"
    write_module(tmp_path, monkeypatch, "own_cuda", text)
    assert count_function("own_cuda:made").forward_flop == 48


@pytest.mark.parametrize("batch", ["torch.zeros(0, 3)", "[1, 2]"])
def test_a_batch_without_samples_is_refused_by_the_function_s_name(tmp_path, monkeypatch, batch):
    text = f"import torch\ndef made():\n    return torch.nn.Linear(3, 2), {batch}\n"
    write_module(tmp_path, monkeypatch, "own_empty", text)
    with pytest.raises(SpecError, match="own_empty:made"):
        count_function("own_empty:made")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("train", "'train'.*module:function"),
        ("no_such_module_here:f", "no module 'no_such_module_here'"),
        (
            "own_wrong:missing",
            "'missing';.* number, pair;.* model, batch",
        ),
        ("own_wrong:LIMIT", "LIMIT .*int;.*function"),
        (
            "own_wrong:number",
            " int;.* model, batch .*model, batch, loss",
        ),
        ("own_wrong:pair", " a str;.*torch.nn.Module"),
        ("own_broken:f", "importing own_broken failed: ZeroDivisionError"),
        ("own_needy:f", "importing own_needy needs 'a_library_nobody_has': install it"),
    ],
)
def test_a_function_that_cannot_be_used_states_what_is_expected(tmp_path, monkeypatch, reference, words):
    write_module(tmp_path, monkeypatch, "own_broken", "1 / 0\n")
    write_module(tmp_path, monkeypatch, "own_needy", "import a_library_nobody_has\n")
    write_module(
        tmp_path,
        monkeypatch,
        "own_wrong",
        "LIMIT = 3\ndef number():\n    return 3\ndef pair():\n    return 'model', 1\n",
    )
    with pytest.raises(SpecError, match=words.replace("(", r"\(")):
        load_factory(reference).made()


@pytest.mark.parametrize(("name", "words"), [("leaves", "SystemExit: 7"), ("fails", "Mine: boom")])
def test_a_function_that_raises_is_refused_with_what_it_raised(tmp_path, monkeypatch, name, words):
    text = "def leaves():\n    raise SystemExit(7)\nclass Mine(Exception):\n    pass\ndef fails():\n    raise Mine('boom')\n"
    write_module(tmp_path, monkeypatch, "own_raises", text)
    with pytest.raises(SpecError, match=words):
        count_function(f"own_raises:{name}")


def test_a_function_that_raises_is_told_apart_from_a_model_that_does(tmp_path, monkeypatch):
    text = "def fails():\n    raise RuntimeError('no data here')\n"
    write_module(tmp_path, monkeypatch, "own_factory", text)
    with pytest.raises(SpecError) as caught:
        count_function("own_factory:fails")
    assert "own_factory:fails" in str(caught.value)
    assert "model(" not in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "loss", "call"),
    [
        (torch.randn(2, 5), None, "model(batch)"),
        ((torch.randn(2, 5),), None, "model(*batch)"),
        ((torch.randn(2, 5), torch.randn(2, 4)), nn.MSELoss(), "model(*batch[:-1])"),
        ({"input": torch.randn(2, 5)}, None, "model(**batch)"),
    ],
)
def test_the_call_to_try_is_the_one_that_counting_makes(batch, loss, call):
    # 5 features do not go into a layer of 4; the documented forms are those of `count`.
    with pytest.raises(SpecError) as caught:
        count(nn.Linear(4, 4), batch, loss=loss)
    assert f"try {call} " in str(caught.value)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(4, 4).requires_grad_(requires_grad=False)])
def test_a_model_of_which_nothing_is_trained_is_no_workload(model):
    with pytest.raises(SpecError, match="require gradients"):
        count(model, torch.randn(2, 4)).workload("mine:made", "mine")


def test_a_builder_that_needs_values_gets_that_advice(tmp_path, monkeypatch):
    text = "import torch\ndef made():\n    rates = [x.item() for x in torch.linspace(0, 0.1, 3)]\n    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(rates[2])), torch.randn(4, 3)\n"
    write_module(tmp_path, monkeypatch, "own_values", text)
    with pytest.raises(SpecError, match=r"own_values.py:3: .*allocate=True"):
        count_function("own_values:made")
    assert count_function("own_values:made", allocate=True).num_forward_kernels == 2


def test_lazy_modules_want_one_batch_before_they_have_shapes():
    def build():
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU())

    with pytest.raises(SpecError, match=r"Sequential: .*lazy"):
        count(build, torch.zeros(2, 3))
    model = build()
    model(torch.zeros(2, 3))
    assert count(model, torch.zeros(2, 3)).params == 3 * 4 + 4


def test_weights_drawn_until_they_fit_need_no_values():
    def build():
        layer = nn.Linear(8, 8)
        nn.init.trunc_normal_(layer.weight)
        return layer

    assert count(build, torch.empty(2, 8)).params == 72


# What cannot be counted.


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 1)

    def forward(self, x):
        return x if self.gate(x).sum() > 0 else -x


def test_control_flow_on_values_names_the_module_and_the_way_round():
    with pytest.raises(
        SpecError, match=r"1 \(Deciding\), .*test_torch_model.py:\d+: .*control flow"
    ) as caught:
        count(nn.Sequential(nn.Linear(4, 4), Deciding()), torch.randn(2, 4))
    assert "train_flop_per_sample by hand" in str(caught.value)


def test_shapes_that_depend_on_values_are_named():
    class Selecting(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(SpecError, match=r"\(Selecting\), .*shape"):
        count(Selecting(), torch.randn(2, 4))


def test_a_batch_that_does_not_fit_states_where():
    with pytest.raises(SpecError, match=r"^0 \(Linear\).*RuntimeError.*try model\(batch\)"):
        count(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 5))


def test_a_batch_without_samples_is_refused():
    with pytest.raises(SpecError, match="first dim"):
        count(nn.Linear(4, 4), {"x": 3})


def test_the_page_of_examples_gives_what_is_shown():
    page = Path(__file__).resolve().parents[2] / "docs" / "decide" / "models.md"
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 10
    assert result.failed == 0
