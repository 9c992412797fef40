"""Grouping of rows: rows of one execution in several units, and clusters of nearly equal executions.

A cluster has one model width, machine and strategy, and any number of layers and micro-batches. Errors are
counted by cluster, and no fold of a split cuts one.
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

# Columns of measurements; the other columns state what was run.
_MEASUREMENTS = frozenset({"measured", "unit", "memory_gib", "other_tool_prediction", "other_tool"})
_IDENTITY = tuple(name for name in FILE_COLUMNS if name not in _MEASUREMENTS)
# Additional relative uncertainty of a figure in FLOP/s, because it depends on a counting convention.
_CONVENTION_UNCERTAINTY = 0.01
_EXACT_ENOUGH = 0.01
_FROZEN_WEIGHTS = (0.6, 0.72)  # range around 2/3, the fraction of a step's FLOP if weights have no gradients
_OWNER = re.compile(r"(?<=github:)[\w.-]+/|https?://(?:github\.com/[\w.-]+|[^/\s]+)")


# Cells that distinguish clusters of collectives (each message size is timed separately) and of rates.
_COLLECTIVE_CELLS = ("parallel_config", "global_batch")
_RATE_CELLS = ("precision", "micro_batch", "seq", "source")


def read_executions(paths: Sequence[Path]) -> tuple[PublishedRow, ...]:
    """The rows of the files, one per execution: of several units, the row with the most precise figure.

    Rows without seconds are omitted. Raises as `read_rows` does.
    """
    return chosen(with_executions(read_rows(paths)))


def with_executions(rows: Sequence[PublishedRow]) -> tuple[PublishedRow, ...]:
    """The rows, each with its execution and cluster, completed with what other rows of its execution state.

    Rows that differ only in unit and figure are one execution; if the unit is also equal, they are
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
    """One row per execution, in the order of their first rows: the one that gives the time most exactly."""
    best: dict[int, PublishedRow] = {}
    for row in rows:
        if row.execution >= 0 and (row.execution not in best or _rank(row) < _rank(best[row.execution])):
            best[row.execution] = row
    return tuple(best.values())


def _rank(row: PublishedRow) -> tuple[float, bool]:
    """Sort key, lower is better: uncertainty above _EXACT_ENOUGH, then times before rates."""
    is_rate = row.quantity is not None and row.quantity.is_rate
    return max(_uncertainty(row), _EXACT_ENOUGH), is_rate


def _uncertainty(row: PublishedRow) -> float:
    """Relative uncertainty of the seconds of a row from rounding and convention."""
    by_convention = row.quantity is not None and row.quantity.kind in {"flop", "utilisation"}
    return row.resolution + (_CONVENTION_UNCERTAINTY if by_convention else 0.0)


def _completed(rows: list[PublishedRow]) -> list[PublishedRow]:
    """Rows of one execution, each completed with the memory and trained weights that any of them states."""
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
    # Seconds from FLOP/s assume full training, so they are too large by the same factor as the FLOP.
    return _FROZEN_WEIGHTS[0] <= by_tokens / by_flop <= _FROZEN_WEIGHTS[1]


def _cluster_key(row: PublishedRow) -> Hashable:
    """The key of a cluster: everything except layers, batch of a step, and the release of the software."""
    where = (row.kind, row.workload, row.hardware, row.num_accelerators)
    if row.kind == "step" and row.strategy is not None and row.model is not None:
        strategy = row.strategy
        fixed = replace(strategy, global_batch_samples=strategy.dp * strategy.microbatch_samples)
        model = row.model.transformer
        return (*where, fixed, row.model.sequence, None if model is None else (model.hidden, model.heads))
    names = _COLLECTIVE_CELLS if row.kind == "collective" else _RATE_CELLS
    return (*where, row.operation, *(row.cells.get(name, "").strip() for name in names))


def software_of(row: PublishedRow) -> Software | None:
    """The software that a row names; None if it names none or the hardware is unknown.

    Also None if the software lacks a tensor, pipeline or context axis of that size: FSDP is a technique, too.
    """
    nodes = nodes_of(row) if row.num_accelerators else None
    if nodes is None:
        return None
    is_eager = row.strategy is not None and row.strategy.implementation == "eager"
    # The name of the source is the second choice, without its owner or host: NVIDIA-NeMo/Automodel runs
    # FSDP2, and files at huggingface.co are not necessarily from Hugging Face's Trainer.
    name = _OWNER.sub("", row.cells.get("source", ""))
    texts = (f"{row.workload} {row.cells.get('parallel_config', '')}", name)
    chip = nodes.accelerator
    named = (software_in(text, vendor=chip.vendor, is_eager=is_eager, chip_year=chip.year) for text in texts)
    return next((each for each in named if each is not None and has_axes(each, row.strategy)), None)


def has_axes(software: Software, strategy: Strategy | None) -> bool:
    """Whether a software supports tensor, pipeline and context axes of a strategy's sizes."""
    if strategy is None:
        return True
    sizes = {"tp": strategy.tp, "pp": strategy.pp, "cp": strategy.cp}
    return all(size in software.options.get(axis, (size,)) for axis, size in sizes.items())


def campaign_of(row: PublishedRow) -> Hashable:
    """The key of a campaign of runs under the same conditions: source document, software and chip.

    The revision of a document and lines within it are ignored.
    """
    document = re.sub(r"@[^:\s]*", "", row.cells.get("source", "").partition("#")[0]).split()[:1]
    nodes, found = nodes_of(row), software_of(row)
    chip = None if nodes is None else family_of(nodes.accelerator.slug)
    return tuple(document), None if found is None else found.name, chip


def digest_of(row: PublishedRow) -> str:
    """A digest of ten hexadecimal digits that is equal for copies of a row in other files."""
    cells = [
        f"{name}={text.strip()}"
        for name, text in sorted(row.cells.items())
        if text.strip() and name in FILE_COLUMNS
    ]
    return blake2s("\n".join(cells).encode(), digest_size=5).hexdigest()
