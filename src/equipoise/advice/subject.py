"""What is to be trained: a workload of the catalogue, or a torch model counted on the spot."""

from equipoise.errors import EvidenceError
from equipoise.perfmodel.space import Value
from equipoise.spec.torch_model import Counted, count_function
from equipoise.spec.workload import Workload, workload

# Batches of pre-trainings of language models whose samples against batch nobody has published: 4 Mi tokens,
# as all sizes of LLaMA and Llama 2 had (Touvron et al. 2023, in both papers).
_USUAL_BATCH_TOKENS = 2**22
USUAL_LORA_RANK = 16


def subject(name: str) -> Workload:
    """The workload of a name of the catalogue, or of the model and batch that `module:function` returns.

    Raises SpecError with the nearest names, or why the function's model cannot be counted.
    """
    if ":" not in name:
        return workload(name)
    return counted_workload(name, count_function(name))


def counted_workload(name: str, counted: Counted) -> Workload:
    """The workload of a count; its "sample" is one of the example batch, so whole samples only are known.

    Assumes that layers are the modules that have FLOP of their own.
    """
    layers = sum(1 for each in counted.layers if each.forward_flop)
    return Workload(
        slug=name,
        title=name,
        area="language",
        source="counted on the example batch",
        params=float(counted.params),
        forward_flop_per_sample=counted.forward_flop_per_sample,
        backward_flop_per_sample=counted.train_flop_per_sample - counted.forward_flop_per_sample,
        activation_bytes_per_sample=counted.activation_bytes_per_sample,
        boundary_bytes_per_sample=_boundary_bytes(counted),
        layers=max(1, layers),
    )


def _boundary_bytes(counted: Counted) -> float | None:
    """Bytes of a sample over the widest inner cut; None where there is no such cut."""
    widest = [cut.boundary_bytes for cut in counted.cuts]
    return max(widest) / counted.num_samples if widest else None


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
