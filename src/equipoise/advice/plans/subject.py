"""What is to be trained: a workload of the catalogue, or a torch model counted on the spot."""

from equipoise.errors import EvidenceError
from equipoise.perfmodel.space import Value
from equipoise.spec.torch_model import count_function
from equipoise.spec.workload import Workload, workload

# Batches of pre-trainings of language models whose samples against batch nobody has published: 4 Mi tokens,
# as all sizes of LLaMA and Llama 2 had (Touvron et al. 2023, in both papers).
_USUAL_BATCH_TOKENS = 2**22
USUAL_LORA_RANK = 16


def subject(name: str) -> Workload:
    """The workload of a name of the catalogue, or of the model and batch that `module:function` returns.

    Raises SpecError with the nearest names, or why the function's model cannot be counted.
    """
    return count_function(name).workload(name, name) if ":" in name else workload(name)


def usual_choices(asked: dict[str, tuple[Value, ...]], about: Workload) -> dict[str, tuple[Value, ...]]:
    """The values knobs may take, with what the workload itself fixes: the part that is trained, its rank."""
    choices = dict(asked)
    choices.setdefault("trained", (about.trained,))
    if choices["trained"] != ("full",):
        ranks: tuple[Value, ...] = (about.lora_rank or USUAL_LORA_RANK,)
        if "full" in choices["trained"]:
            ranks = (0, *ranks)
        choices.setdefault("lora_rank", ranks)
    if "powersgd" in choices.get("compression", ()) or "topk" in choices.get("compression", ()):
        choices.setdefault("compression_rank", (0, 1, 2, 4, 8, 16, 32, 100, 1000))
    return choices


def usual_batch(about: Workload) -> int:
    """The global batch to take where nobody says how many samples a batch costs.

    Raises EvidenceError where there is no usual one.
    """
    is_text = about.area == "language" and about.transformer is not None
    if not is_text or about.sequence_tokens is None or about.trained != "full":
        raise EvidenceError(
            f"no published result of {about.title} tells which global batch it bears",
            missing=("the global batch: --global-batch N",),
        )
    return max(1, _USUAL_BATCH_TOKENS // about.sequence_tokens)
