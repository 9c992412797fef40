"""Reasons that several programs share why a field of a strategy has no option."""

from collections.abc import Iterator

from equipoise.launch.program import Expressed, Model
from equipoise.spec.strategy import Strategy


def adapters(strategy: Strategy) -> str:
    """The adapters of a strategy, in words."""
    return f"{strategy.trained} adapters of rank {strategy.lora_rank}"


def adapters_in_code(strategy: Strategy, _: Model) -> Expressed:
    """Adapters, for programs that train the model they are given."""
    if strategy.trained != "full":
        yield f"{adapters(strategy)}: wrap the model with peft in your own code"


def compression(strategy: Strategy, _: Model) -> Expressed:
    """Compressed gradients, for programs that exchange them as they are."""
    if strategy.compression != "none":
        rank = f" of rank {strategy.compression_rank}" if strategy.compression_rank else ""
        yield f"{strategy.compression} gradients{rank}"


def averaging(strategy: Strategy, _: Model) -> Expressed:
    """Weights averaged every few steps, for programs that exchange gradients in every step."""
    if strategy.sync_period > 1:
        yield f"averaging of weights every {strategy.sync_period} steps instead of gradients in each"


def kernels_in_code(strategy: Strategy, _: Model) -> Expressed:
    """Attention and loss, for programs that leave them to the code of the model."""
    attention = "fused" if strategy.fused_attention else "unfused"
    yield f"{attention} attention: the code of your model chooses it"
    loss = "a fused" if strategy.fused_loss else "an unfused"
    yield f"{loss} loss: the code of your model chooses it"


def refuse_pipeline(strategy: Strategy, _: Model) -> Iterator[str]:
    """Pipelines, for programs whose configuration has none: without, processes and batch do not agree."""
    if strategy.pp > 1:
        yield f"pp={strategy.pp}: its configuration has no pipeline"
    if strategy.interleave > 1:
        yield f"{strategy.interleave} chunks per rank: its configuration has no pipeline"
