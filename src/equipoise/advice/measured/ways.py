"""What may be tried to train a model faster here: ways, numbers of ranks and batches, and what is refused."""

from dataclasses import dataclass
from itertools import product

from equipoise.bench.cell import Cell
from equipoise.bench.methods import method

# What a way to train does to what is learned from a sample.
EXACT, LARGER_BATCH, LOSSY, OTHER = (
    "exact",
    "exact for a larger batch",
    "lossy",
    "changes the algorithm",
)
_EFFECTS = {
    **dict.fromkeys(("single", "ddp", "static_graph", "fsdp"), EXACT),
    "accumulate": LARGER_BATCH,
    **dict.fromkeys(("fp16", "bf16", "powersgd", "topk"), LOSSY),
    **dict.fromkeys(("localsgd", "diloco", "localsgd_fp16", "diloco_fp16"), OTHER),
}
# Searched unless others are named: what is exact, and what was seen to reach the same loss.
EXACT_METHODS = ("ddp", "ddp:1", "static_graph", "fsdp")
EVIDENCED_METHODS = ("fp16", "bf16", "accumulate:2", "localsgd:8", "localsgd_fp16:32")
EVIDENCE = "docs/experiments/0013-convergence.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried. methods: of several ranks, as texts. batches: samples of a step over all ranks."""

    workload: str
    methods: tuple[str, ...]
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    precision: str = "fp32"
    device: str = "cpu"
    backend: str = "gloo"
    num_steps: int = 20
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What cannot be tried here, and why."""

    method: str
    num_ranks: int
    batch_samples: int | None
    reason: str


def effect(text: str) -> str:
    """What a way to train does to what is learned from a sample.

    >>> effect("fp16"), effect("ddp"), effect("localsgd:8")
    ('lossy', 'exact', 'changes the algorithm')
    """
    return _EFFECTS[method(text)[0].name]


def default_methods(*, exact_only: bool) -> tuple[str, ...]:
    """What is searched when no strategy is named."""
    return EXACT_METHODS if exact_only else (*EXACT_METHODS, *EVIDENCED_METHODS)


def candidates(space: Space) -> tuple[tuple[Cell, ...], tuple[Refused, ...]]:
    """Every combination that can run here, one device among them, and those that cannot with the reason."""
    cells: dict[str, Cell] = {}
    refused = []
    for size, text, batch in product(space.sizes, ("single", *space.methods), space.batches):
        if (size == 1) != (text == "single"):
            continue
        reason = method(text)[0].why_not(size, space.backend)
        if reason is not None:
            refused.append(Refused(method=text, num_ranks=size, batch_samples=None, reason=reason))
            continue
        if batch % size:
            reason = f"a batch of {batch} cannot be shared equally by {size} ranks"
            refused.append(Refused(method=text, num_ranks=size, batch_samples=batch, reason=reason))
            continue
        cell = _cell(space, text, size, batch)
        cells[cell.cell_id] = cell
    return tuple(cells.values()), tuple(dict.fromkeys(refused))


def _cell(space: Space, text: str, size: int, batch: int) -> Cell:
    return Cell(
        workload=space.workload,
        method=text,
        num_ranks=size,
        batch_samples=batch,
        precision=space.precision,
        device=space.device,
        num_steps=space.num_steps,
        seed=space.seed,
    )


def alone_cells(space: Space) -> tuple[Cell, ...]:
    """Runs of one device that predictions need: its smallest and largest share, and all own batches."""
    shares = sorted({batch // size for size, batch in product(space.sizes, space.batches) if batch >= size})
    wanted = {shares[0], shares[-1], *(space.batches if 1 in space.sizes else ())}
    return tuple(_cell(space, "single", 1, batch) for batch in sorted(wanted))
