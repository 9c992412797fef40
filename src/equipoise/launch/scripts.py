"""The parts that all training scripts share, rendered from the files in templates/. Imports no torch."""

from functools import cache
from pathlib import Path
from string import Template
from textwrap import indent

from equipoise.spec.strategy import Strategy

WEIGHTS_SHARDED = 3  # the ZeRO stage from which weights are sharded too
GRADIENTS_SHARDED = 2
# Below 16 bits, products are narrowed by a library of their own inside a bf16 network.
_HALVES = {"fp16": "float16"}
_TEMPLATES = Path(__file__).with_name("templates")


@cache
def _template(name: str) -> Template:
    return Template((_TEMPLATES / f"{name}.tmpl").read_text(encoding="utf-8"))


def rendered(name: str, **values: object) -> str:
    """A template of templates/ with its placeholders filled."""
    return _template(name).substitute(values)


def compute_dtype(strategy: Strategy) -> str:
    """The dtype of torch that products run in outside libraries for fewer than 16 bits."""
    if strategy.precision in {"fp32", "tf32"}:
        return "float32"
    return _HALVES.get(strategy.precision, "bfloat16")


def is_sharded(strategy: Strategy) -> bool:
    """Whether gradients or weights are, or lie in the host's memory: what `fully_shard` does."""
    return strategy.zero_stage >= GRADIENTS_SHARDED or strategy.offload != "none"


def whole_script(*parts: str, main: str) -> str:
    """A script of these parts, two blank lines between them, and a `main` that it runs."""
    body = indent(main, "    ")
    return "\n\n".join((*parts, f"def main():\n{body}", 'if __name__ == "__main__":\n    main()\n'))


def recompute_class(strategy: Strategy) -> str:
    """The wrapper of a layer that is recomputed."""
    call = "checkpoint(self.layer, *inputs, use_reentrant=False)"
    if strategy.recompute == "selective":
        call = rendered("selective_call").rstrip()
    return rendered("recomputed", call=call)


def recompute_imports(strategy: Strategy) -> str:
    """What the wrapper of recomputed layers imports from torch; empty where nothing is recomputed."""
    if strategy.recompute == "none":
        return ""
    if strategy.recompute == "full":
        return "from torch.utils.checkpoint import checkpoint\n"
    names = "    checkpoint,\n    create_selective_checkpoint_contexts,\n"
    return f"from torch.utils.checkpoint import (\n{names})\n"


def recompute_constants(strategy: Strategy) -> str:
    """What selective recomputation keeps: results of products and of fused attention."""
    return rendered("kept") if strategy.recompute == "selective" else ""


def recomputing(strategy: Strategy) -> str:
    """The line that wraps every layer."""
    if strategy.recompute == "none":
        return ""
    return "model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)\n"


def optimizer_arguments(strategy: Strategy) -> tuple[str, str]:
    """The class of the optimizer and its settings, as text."""
    return {
        "adam": ("torch.optim.AdamW", "lr=1e-3"),
        "adam_8bit": ("AdamW8bit", "lr=1e-3"),
        "sgd": ("torch.optim.SGD", "lr=1e-2, momentum=0.9"),
    }[strategy.optimizer]


def optimizer_imports(strategy: Strategy) -> str:
    """What the optimizer imports besides torch."""
    if strategy.optimizer != "adam_8bit":
        return ""
    return "from torchao.optim import AdamW8bit  # pip install torchao\n"


def tf32_line(strategy: Strategy) -> str:
    """What lets products of 32 bits run in tf32; nothing for fp32."""
    if strategy.precision == "fp32":
        return ""
    return 'torch.set_float32_matmul_precision("high")  # tf32 in what stays 32 bits\n'


def not_in_training_scripts(strategy: Strategy) -> tuple[str, ...]:
    """What no training script here does, for a plan that assumes it."""
    missing = []
    if strategy.compression == "topk":
        missing.append("top-k gradients: torch has no communication hook for them")
    if strategy.compression != "none" and (is_sharded(strategy) or strategy.sync_period > 1):
        missing.append(f"{strategy.compression} gradients: only DistributedDataParallel takes a hook")
    if strategy.offload == "optimizer":
        missing.append("offloading of the optimizer alone: CPUOffloadPolicy moves weights and gradients too")
    return tuple(missing)
