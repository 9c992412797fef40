"""Which rows are of one execution, in several units, and which executions are nearly one: a cluster.

A cluster has one model width, machine and strategy, whatever the number of layers and micro-batches. Errors
are counted, and folds of a split are cut, by cluster.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from hashlib import blake2s
from pathlib import Path

from msgspec.structs import replace

from equipoise.calibration.published import FILE_COLUMNS, PublishedRow, nodes_of, read_rows
from equipoise.spec import family_of
from equipoise.spec.strategy import USUAL_LORA_RANK, Software, Strategy, software_in

# What was seen of an execution; whatever was run is in the other columns.
_SEEN = frozenset({"measured", "unit", "memory_gib", "other_tool_prediction", "other_tool"})
_IDENTITY = tuple(name for name in FILE_COLUMNS if name not in _SEEN)
# A figure in FLOP/s rests on a convention of counting: as much as this many digits less.
_CONVENTION_DOUBT = 0.01
_EXACT_ENOUGH = 0.01
_FROZEN_WEIGHTS = (0.6, 0.72)  # of a step's FLOP where weights have no gradients: 2/3
_OWNER = re.compile(r"(?<=github:)[\w.-]+/|https?://(?:github\.com/[\w.-]+|[^/\s]+)")


# Each size of a message is timed by itself; so is each rate.
_COLLECTIVE_CELLS = ("parallel_config", "global_batch")
_RATE_CELLS = ("precision", "micro_batch", "seq", "source")


def read_executions(paths: Sequence[Path]) -> tuple[PublishedRow, ...]:
    """The rows of the files, one an execution: of several units the one with the finest figure.

    Rows without seconds are left out. Raises as `read_rows` does.
    """
    return chosen(with_executions(read_rows(paths)))


def with_executions(rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
    """The rows, each with its execution and cluster; what a pair of figures shows of an execution is filled
    in.

    Rows that agree in everything but unit and figure are one execution; with the same unit too, they are
    repetitions.
    """
    executions: dict[Hashable, list[int]] = defaultdict(list)
    times_seen: dict[Hashable, int] = defaultdict(int)
    for index, row in enumerate(rows):
        if row.seconds is None or row.quantity is None:
            continue
        identity = tuple(row.cells.get(name, "").strip() for name in _IDENTITY)
        same_unit = (identity, row.quantity.kind)
        executions[identity, times_seen[same_unit]].append(index)
        times_seen[same_unit] += 1
    found = list(rows)
    clusters: dict[Hashable, int] = {}
    for number, members in enumerate(executions.values()):
        whole = _completed([found[index] for index in members])
        cluster = clusters.setdefault(_cluster_key(whole[0]), len(clusters))
        for index, row in zip(members, whole, strict=True):
            found[index] = replace(row, execution=number, cluster=cluster)
    return tuple(found)


def chosen(rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
    """One row an execution, in the order of their first rows: the one whose figure shows most exactly how
    long it took.
    """
    best: dict[int, PublishedRow] = {}
    for row in rows:
        if row.execution >= 0 and (row.execution not in best or _rank(row) < _rank(best[row.execution])):
            best[row.execution] = row
    return tuple(best.values())


def _rank(row: PublishedRow) -> tuple[float, bool]:
    """The less the better: doubt, as far as it matters, and then times before rates."""
    is_rate = row.quantity is not None and row.quantity.is_rate
    return max(_doubt(row), _EXACT_ENOUGH), is_rate


def _doubt(row: PublishedRow) -> float:
    """How far the seconds of a row may be off by how its figure is written."""
    by_convention = row.quantity is not None and row.quantity.kind in {"flop", "utilisation"}
    return row.resolution + (_CONVENTION_DOUBT if by_convention else 0.0)


def _completed(rows: list[PublishedRow]) -> list[PublishedRow]:
    """Rows of one execution, each with what any of them states: its memory, and which weights were
    trained.
    """
    stating = next((row for row in rows if row.memory_bytes is not None), rows[0])
    memory = {name: getattr(stating, name) for name in ("memory_bytes", "memory_counted")}
    whole = [replace(row, **memory) for row in rows]
    strategy = rows[0].strategy
    if strategy is None or strategy.trained != "full" or not _trains_adapters(rows):
        return whole
    lora = replace(strategy, trained="lora", lora_rank=USUAL_LORA_RANK)
    note = "FLOP and tokens of one execution are 2/3 of full training: adapters over frozen weights"
    return [replace(row, strategy=lora, notes=(*row.notes, note)) for row in whole]


def _trains_adapters(rows: list[PublishedRow]) -> bool:
    """Whether FLOP/s and tokens/s of one execution imply that frozen weights have no gradients."""
    seen = {(row.quantity.kind, row.quantity.counted): row.seconds for row in rows if row.quantity}
    by_tokens, by_flop = seen.get(("tokens", "executed")), seen.get(("flop", "model"))
    if by_tokens is None or by_flop is None:
        return False
    # Seconds by FLOP/s assume full training: they are too many by as much as the FLOP are too many.
    return _FROZEN_WEIGHTS[0] <= by_tokens / by_flop <= _FROZEN_WEIGHTS[1]


def _cluster_key(row: PublishedRow) -> Hashable:
    """What executions share that are nearly one: all but layers, batch of a step, and which release ran."""
    where = (row.kind, row.workload, row.hardware, row.num_accelerators)
    if row.kind == "step" and row.strategy is not None and row.model is not None:
        strategy = row.strategy
        fixed = replace(strategy, global_batch_samples=strategy.dp * strategy.microbatch_samples)
        model = row.model.transformer
        return (*where, fixed, row.model.sequence, None if model is None else (model.hidden, model.heads))
    names = _COLLECTIVE_CELLS if row.kind == "collective" else _RATE_CELLS
    return (*where, row.operation, *(row.cells.get(name, "").strip() for name in names))


def software_of(row: PublishedRow) -> Software | None:
    """The software that a row names; None where it names none, or its hardware is not known, or that software
    has no tensor, pipeline or context axis as long as the row's: FSDP is a technique, too.
    """
    nodes = nodes_of(row) if row.num_accelerators else None
    if nodes is None:
        return None
    is_eager = row.strategy is not None and row.strategy.implementation == "eager"
    # What a source calls itself is the second choice, without its owner or host: NVIDIA-NeMo/Automodel runs
    # FSDP2, and what lies at huggingface.co need not be run by Hugging Face's Trainer.
    name = _OWNER.sub("", row.cells.get("source", ""))
    texts = (f"{row.workload} {row.cells.get('parallel_config', '')}", name)
    chip = nodes.accelerator
    named = (software_in(text, vendor=chip.vendor, is_eager=is_eager, chip_year=chip.year) for text in texts)
    return next((each for each in named if each is not None and has_axes(each, row.strategy)), None)


def has_axes(software: Software, strategy: Strategy | None) -> bool:
    """Whether a software has tensor, pipeline and context axes as long as a strategy's."""
    if strategy is None:
        return True
    sizes = {"tp": strategy.tp, "pp": strategy.pp, "cp": strategy.cp}
    return all(size in software.options.get(axis, (size,)) for axis, size in sizes.items())


def campaign_of(row: PublishedRow) -> Hashable:
    """What runs under the same conditions share: the document they are from, the software and the chip.

    Lines of a document and its revision make no other campaign.
    """
    document = re.sub(r"@[^:\s]*", "", row.cells.get("source", "").partition("#")[0]).split()[:1]
    nodes, found = nodes_of(row), software_of(row)
    chip = None if nodes is None else family_of(nodes.accelerator.slug)
    return tuple(document), None if found is None else found.name, chip


def digest_of(row: PublishedRow) -> str:
    """Ten digits that a row has in common with its copies in other files, and hardly with any other row."""
    cells = [
        f"{name}={text.strip()}"
        for name, text in sorted(row.cells.items())
        if text.strip() and name in FILE_COLUMNS
    ]
    return blake2s("\n".join(cells).encode(), digest_size=5).hexdigest()
