"""Published models with random weights, from transformers' configurations, on random data."""

from importlib import import_module
from typing import Any

import torch
from torch import nn

from equipoise.bench.zoo import small
from equipoise.bench.zoo.data import NUM_RANDOM_SAMPLES, Made
from equipoise.bench.zoo.lora import add_lora

NUM_CLASSES = 1000
IMAGE_SIDE = 224
MASKED_FRACTION = 0.15  # Devlin et al. 2018, section 3.1
IGNORED = -100  # the label that torch's cross entropy leaves out


def _code() -> Any:  # noqa: ANN401 - a module
    """Transformers, loaded when a model is built: without it this module can still be read."""
    return import_module("transformers")


def mobilenet_v2() -> Made:
    """Width 1.0."""
    config = _code().MobileNetV2Config(num_labels=NUM_CLASSES, image_size=IMAGE_SIDE)
    return _on_images(_code().MobileNetV2ForImageClassification(config))


def digits_mobilenet() -> Made:
    """Width 1.0, for digits of 32 x 32 pixels, the least its five halvings take."""
    config = _code().MobileNetV2Config(num_labels=small.NUM_CLASSES, image_size=32)
    model = _code().MobileNetV2ForImageClassification(config)
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            # The code sets 0.997, which with small batches makes the statistics those of the last one.
            each.momentum = 0.1
    return small.on_digits(
        model,
        side=32,
        num_channels=3,
        scores=lambda model, images: model(pixel_values=images).logits,
    )


def resnet50() -> Made:
    """3, 4, 6 and 3 bottleneck blocks."""
    return _resnet([3, 4, 6, 3])


def resnet152() -> Made:
    """3, 8, 36 and 3 bottleneck blocks."""
    return _resnet([3, 8, 36, 3])


def _resnet(depths: list[int]) -> Made:
    config = _code().ResNetConfig(depths=depths, num_labels=NUM_CLASSES)
    return _on_images(_code().ResNetForImageClassification(config))


def vit_large() -> Made:
    """24 layers, 1,024 wide, 16 heads, patches of 16 x 16."""
    config = _code().ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        image_size=IMAGE_SIDE,
        num_labels=NUM_CLASSES,
    )
    return _on_images(_code().ViTForImageClassification(config))


def bert() -> Made:
    """24 layers, 1,024 wide, 16 heads, 30,522 words; 128 tokens, as in most of its pre-training."""
    config = _code().BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    model = _code().BertForMaskedLM(config)
    tokens = _text(config.vocab_size, num_tokens=128)
    labels = tokens.clone()
    labels[torch.rand(labels.shape) >= MASKED_FRACTION] = IGNORED
    return Made(model=model, pool=(tokens, labels), loss=_foretold)


def small_llama() -> Made:
    """6 layers, 288 wide, 6 heads, 32,000 words, input and output embeddings shared; 256 tokens."""
    return _llama()


def small_llama_lora() -> Made:
    """The same, of which only low-rank changes to queries and values are trained."""
    made = _llama()
    add_lora(made.model, ("q_proj", "v_proj"), rank=8, alpha=16)
    return made


def _llama() -> Made:
    config = _code().LlamaConfig(
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        vocab_size=32_000,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    tokens = _text(config.vocab_size, num_tokens=256)
    return Made(model=_code().LlamaForCausalLM(config), pool=(tokens, tokens), loss=_foretold)


def _text(num_words: int, *, num_tokens: int) -> torch.Tensor:
    """Random words: (num_samples, num_tokens)."""
    return torch.randint(num_words, (NUM_RANDOM_SAMPLES, num_tokens))


def _on_images(model: nn.Module) -> Made:
    """A classifier with random images and labels."""
    images = torch.randn(NUM_RANDOM_SAMPLES, 3, IMAGE_SIDE, IMAGE_SIDE)
    labels = torch.randint(NUM_CLASSES, (NUM_RANDOM_SAMPLES,))
    return Made(model=model, pool=(images, labels), loss=_classified)


def _classified(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Mean cross entropy of classes."""
    images, labels = batch
    loss: torch.Tensor = nn.functional.cross_entropy(model(pixel_values=images).logits, labels)
    return loss


def _foretold(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The model's own loss of words."""
    tokens, labels = batch
    loss: torch.Tensor = model(input_ids=tokens, labels=labels).loss
    return loss
